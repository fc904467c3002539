"""Who leads each shard, and how a request reaches that leader."""
