"""A node's data on its disk: the shards' databases and their write-ahead log."""
