"""One shard's bytes on this node's disk."""
