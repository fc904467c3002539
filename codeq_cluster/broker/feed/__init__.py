"""Feed: what happens to tasks, for callers that watch."""
