"""Questions about tasks and queues, over one shard or all of them."""
