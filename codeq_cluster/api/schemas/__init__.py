"""JSON bodies of requests and answers."""
