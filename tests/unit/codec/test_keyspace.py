"""Keys sort as the table says and come apart again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.task import State, Task

SEQ_OF_SLASHES = int.from_bytes(b"////////")
NUMBERS = st.integers(0, 2**63 - 1)


def test_pending_keys_sort_by_priority_then_sequence() -> None:
    """The store's byte order is the claim order."""
    places = [(9, 7), (9, 300), (9, 2**40), (5, 1), (0, 0)]
    keys = [
        keyspace.pending("render", "acme", priority=priority, seq=seq, task_id="t")
        for priority, seq in places
    ]

    assert all(one < other for one, other in pairwise(keys))


@given(priority=st.integers(0, 9), seq=NUMBERS)
def test_a_pending_key_comes_apart(priority: int, seq: int) -> None:
    """Binary parts are read by position, whatever bytes they hold."""
    key = keyspace.pending("a.b", "", priority=priority, seq=seq, task_id="some-id")

    assert (priority, seq, "some-id") == keyspace.pending_parts(key)
    assert ("a.b", "") == keyspace.queue_of(key)
    assert keyspace.family(key) is Family.PENDING


def test_a_sequence_that_looks_like_slashes_does_no_harm() -> None:
    """The byte of the separator may occur in a number."""
    key = keyspace.pending("render", "acme", priority=3, seq=SEQ_OF_SLASHES, task_id="t")

    assert (3, SEQ_OF_SLASHES, "t") == keyspace.pending_parts(key)
    assert keyspace.family(key) is Family.PENDING


@given(instant_ms=NUMBERS)
def test_timed_keys_come_apart(instant_ms: int) -> None:
    """Lease, timer and delayed keys give back their instant."""
    keys = (
        keyspace.lease(instant_ms, "t"),
        keyspace.ttl(instant_ms, "t"),
        keyspace.delayed("render", "acme", due_ms=instant_ms, task_id="t"),
    )

    assert [(instant_ms, "t")] * 3 == [keyspace.timed_parts(key) for key in keys]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (keyspace.task("t"), Family.TASK),
        (keyspace.payload("t"), Family.PAYLOAD),
        (keyspace.result("t"), Family.RESULT),
        (keyspace.delayed("q", "", due_ms=SEQ_OF_SLASHES, task_id="t"), Family.DELAYED),
        (keyspace.inprog("q", "acme", task_id="t"), Family.INPROG),
        (keyspace.dlq("q", "acme", task_id="t"), Family.DLQ),
        (keyspace.lease(SEQ_OF_SLASHES, "t"), Family.LEASE),
        (keyspace.ttl(SEQ_OF_SLASHES, "t"), Family.TTL),
        (keyspace.claim("request", "t"), Family.CLAIM),
        (keyspace.idempotency("", "a/b/c/d/e/f"), Family.IDEMPOTENCY),
        (keyspace.stats("q", ""), Family.STATS),
        (keyspace.meta("clock"), Family.META),
        (b"codeq/hook/t", Family.OTHER),
        (b"codeq/q/a/b", Family.OTHER),
        (b"raft/tasks/t", Family.OTHER),
        (b"", Family.OTHER),
    ],
)
def test_a_key_tells_its_family(key: bytes, expected: Family) -> None:
    """A key of a newer version is OTHER, not an error."""
    assert keyspace.family(key) is expected


def test_keys_that_end_with_a_task_id_give_it_back() -> None:
    """Claims and results are found by key alone."""
    assert keyspace.claim_task_id(keyspace.claim("request", "t-1")) == "t-1"
    assert keyspace.result_task_id(keyspace.result("t-1")) == "t-1"


def test_counters_belong_to_a_queue_and_a_tenant() -> None:
    """The default tenant is the empty one, not one called `_`."""
    assert keyspace.stats_parts(keyspace.stats("render", "")) == ("render", "")
    assert keyspace.stats_parts(keyspace.stats("render", "acme")) == ("render", "acme")


def test_no_name_can_reach_into_another_part_of_the_table() -> None:
    """A slash in a name is a bug that stops the node before it writes."""
    with pytest.raises(AssertionError):
        keyspace.task("a/b")
    with pytest.raises(AssertionError):
        keyspace.stats("render", "_")
    with pytest.raises(AssertionError):
        keyspace.claim("", "t")


def test_a_queue_whose_name_begins_like_another_has_a_range_of_its_own() -> None:
    """`a` and `a.b` do not see each other's tasks."""
    start, end = keyspace.pending_range("a", "acme")

    assert start <= keyspace.pending("a", "acme", priority=0, seq=2**63, task_id="~") < end
    for queue, tenant in (("a.b", "acme"), ("a", "acme2"), ("a", "acm")):
        other = keyspace.pending(queue, tenant, priority=5, seq=1, task_id="t")

        assert not start <= other < end


def test_one_priority_of_a_queue_can_be_named() -> None:
    """The prefix of a priority holds its tasks and no others."""
    key = keyspace.pending("a", "acme", priority=4, seq=1, task_id="t")

    assert key.startswith(keyspace.pending_prefix("a", "acme", 4))
    assert not key.startswith(keyspace.pending_prefix("a", "acme", 5))


@given(prefix=st.binary(min_size=1).filter(lambda prefix: prefix.strip(b"\xff")), tail=st.binary())
def test_a_prefix_range_holds_exactly_what_begins_with_it(prefix: bytes, tail: bytes) -> None:
    """The end is the first key that no longer begins with the prefix."""
    start, end = keyspace.prefix_range(prefix)

    assert start <= prefix + tail < end
    assert not end.startswith(prefix)


def test_a_ready_task_without_a_time_to_live_has_one_row() -> None:
    """The common case costs one index row."""
    assert keyspace.index_rows(_task(State.READY, seq=4)) == {
        keyspace.pending("render", "acme", priority=2, seq=4, task_id="t"): b""
    }


def test_a_delayed_task_wakes_at_the_first_of_its_two_instants() -> None:
    """One timer row a task: due, or dead before that."""
    assert keyspace.ttl(50, "t") in keyspace.index_rows(_task(State.DELAYED, due_ms=50))
    both = keyspace.index_rows(_task(State.DELAYED, due_ms=50, expires_ms=40))

    assert keyspace.ttl(40, "t") in both
    assert keyspace.ttl(50, "t") not in both


def _task(state: State, *, seq: int = 0, due_ms: int = 0, expires_ms: int = 0) -> Task:
    return Task(
        id="t",
        tenant="acme",
        command="Render",
        priority=2,
        max_attempts=5,
        created_ms=1,
        updated_ms=1,
        state=state,
        seq=seq,
        due_ms=due_ms,
        expires_ms=expires_ms,
    )
