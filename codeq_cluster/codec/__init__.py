"""Bytes to values and back: keys, records, log entries."""
