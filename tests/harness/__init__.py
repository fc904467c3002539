"""Harness: clusters of real processes, their faults, and clients that record."""
