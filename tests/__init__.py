"""Tests, and what they and the benchmarks run clusters with."""
