"""One shard on the node that leads it: decide on a view, commit in groups, release."""
