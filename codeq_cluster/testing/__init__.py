"""Fakes, models and the simulator; never imported by production code."""
