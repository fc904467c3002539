"""Celery on this broker: a transport of Kombu, which it finds by itself, and a store of results.

`broker_url = "codeq://TOKEN@n1:8080,n2:8080"` is all that changes.
"""
