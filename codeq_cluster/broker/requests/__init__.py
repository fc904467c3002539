"""Requests that change tasks and queues, each brought to the shards it concerns."""
