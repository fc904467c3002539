"""Benchmark: figures of a real cluster on this machine; `README.md` says how to read them."""
