"""Local: the commands that act on this machine: nodes, their configuration and their files."""
