"""One shard's engine, as the broker's tests have it."""

from tests.unit.broker.conftest import shard

__all__ = ["shard"]
