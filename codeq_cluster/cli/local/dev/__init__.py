"""Development cluster: one command, no configuration, on this machine alone."""
