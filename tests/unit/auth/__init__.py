"""Tests of authentication and access."""
