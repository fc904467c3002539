"""Decide, commit in groups, release: the broker on one node."""
