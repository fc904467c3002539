"""Firing: letting schedules fire at their instants."""
