"""Sending what an entry of one shard causes on another."""
