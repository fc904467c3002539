"""Shards' nodes and leaders, and how a write reaches its leader."""
