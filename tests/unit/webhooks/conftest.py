"""Fixtures of the broker's tests: one shard's engine."""

from tests.unit.broker.conftest import shard

__all__ = ["shard"]
