"""The leader of each shard, and how a request reaches it."""
