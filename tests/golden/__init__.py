"""Formats on disk and in the log stay readable: bytes written down once and compared."""
