"""Command line: one file per command; exit codes 0 ok, 1 error, 2 usage, 3 auth, 4 API."""
