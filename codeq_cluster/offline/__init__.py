"""Actions on the data directory of a stopped node."""
