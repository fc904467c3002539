"""The firer of schedules."""
