"""Connections, requests and errors: what surrounds every route."""
