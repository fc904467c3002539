"""Simulator: the log and the broker on virtual time, network and disks."""
