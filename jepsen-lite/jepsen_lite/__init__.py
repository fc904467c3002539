"""Jepsen-lite: real nodes, clients and faults, a recorded history, and its checkers."""
