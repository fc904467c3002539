"""A node's storage from start to start: what it acknowledged is there, whatever ended the last."""

from __future__ import annotations

import pytest

from tests.unit.storage.sim_node import SimNode


@pytest.mark.parametrize("planned", [True, False])
def test_a_shard_that_wrote_nothing_for_long_opens_after_any_number_of_starts(
    *, planned: bool
) -> None:
    """Each start begins a segment, which is no gap to a shard without a write before it."""
    node = SimNode()
    node.start()
    assert node.write(0, (b"log/0", b"a")) is None
    for n in range(5):
        assert node.write(1, (b"log/%d" % n, b"b")) is None
    if planned:
        node.storage.stop()
    for _ in range(3):
        node.kill()
        node.start()

    assert node.rows(0) == {b"log/0": b"a"}
    assert node.rows(1) == {b"log/%d" % n: b"b" for n in range(5)}
