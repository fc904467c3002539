"""The broker on one shard, without network and disk."""
