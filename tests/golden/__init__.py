"""What is on disk and in the log stays readable: bytes written down once and compared."""
