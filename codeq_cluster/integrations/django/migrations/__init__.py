"""Migrations: how the tables of the application came to be."""
