"""Doctor: finds faults of a node, a cluster or a configuration, and how to mend each."""
