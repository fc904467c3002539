"""Jepsen-lite: real nodes, real clients and real faults, a history of it, and its checkers."""
