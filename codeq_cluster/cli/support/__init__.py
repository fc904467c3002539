"""Support: shared parts of the commands: the cluster to ask, output, and exit codes."""
