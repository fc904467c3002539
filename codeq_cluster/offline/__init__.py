"""What can be done to the data directory of a node that does not run."""
