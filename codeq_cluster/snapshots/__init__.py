"""How a node that has fallen behind gets a shard's whole state from a peer."""
