"""Doctor: what is wrong with a node, a cluster or a configuration, and what to do about it."""
