"""Integrations: other frameworks on this broker, through the public client alone."""
