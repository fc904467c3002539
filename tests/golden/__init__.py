"""Formats on disk and in the log stay readable: they are compared with stored bytes."""
