"""Schedules: when tasks are created by themselves."""
