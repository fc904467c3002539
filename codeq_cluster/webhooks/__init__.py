"""HTTP requests to targets that others name: result callbacks and queue notices."""
