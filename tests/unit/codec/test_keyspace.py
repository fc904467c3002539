"""Keys sort as the table says, and their parts can be read back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.followed import followed_in, scheduled
from codeq_cluster.codec.keyspace import Family, QueuePlace
from codeq_cluster.codec.line_keys import groups_prefix
from codeq_cluster.core.groups import Group
from codeq_cluster.core.items import Audit, Delivery, Item, Pause, Subscription, Sweep, Topic
from codeq_cluster.core.stored_item import ItemKind
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
    """Binary parts are read by position, whatever their bytes."""
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
        (
            keyspace.ended(QueuePlace.DLQ, "q", "acme", ended_ms=SEQ_OF_SLASHES, task_id="t"),
            Family.DLQ,
        ),
        (keyspace.ended(QueuePlace.DONE, "q", "", ended_ms=1, task_id="t"), Family.DONE),
        (keyspace.ended(QueuePlace.FAILED, "q", "", ended_ms=1, task_id="t"), Family.FAILED),
        (keyspace.item(ItemKind.TOPIC, "acme", "q"), Family.ITEM),
        (keyspace.item(ItemKind.AUDIT, "", "1-request"), Family.ITEM),
        (keyspace.body("acme", "t.1"), Family.BODY),
        (groups_prefix("acme") + b"////////" + b"/t.1", Family.GROUPS),
        (keyspace.dead_prefix("acme") + b"////////" + b"/t.1", Family.DEAD),
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
    assert "t-1" == keyspace.last_id(keyspace.claim("request", "t-1"))
    assert "t-1" == keyspace.last_id(keyspace.result("t-1"))


def test_keys_of_items_come_apart() -> None:
    """The default tenant is the empty one, and a slash byte in an instant does no harm."""
    for kind in ItemKind:
        for tenant in ("", "acme"):
            key = keyspace.item(kind, tenant, "t.1")

            assert (kind, tenant, "t.1") == keyspace.item_parts(key)
            assert key.startswith(keyspace.item_prefix(kind, tenant))
            assert key.startswith(keyspace.item_prefix(kind))
    [outbox_job] = keyspace.item_index_keys(_delivery(due_ms=SEQ_OF_SLASHES))

    assert keyspace.family(outbox_job) is Family.OUTBOX
    assert (ItemKind.DELIVERY, "acme", "t.1") == keyspace.item_parts(outbox_job)
    assert SEQ_OF_SLASHES == keyspace.item_timer_ms(outbox_job)


def test_a_tenant_whose_name_begins_like_another_has_items_of_its_own() -> None:
    """A list of one tenant's items never shows another's."""
    start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.TOPIC, "acme"))

    assert start <= keyspace.item(ItemKind.TOPIC, "acme", "~") < end
    for key in (
        keyspace.item(ItemKind.TOPIC, "acme2", "q"),
        keyspace.item(ItemKind.TOPIC, "", "acme"),
        keyspace.item(ItemKind.PAUSE, "acme", "q"),
    ):
        assert not start <= key < end


def test_an_item_of_an_unknown_kind_is_not_guessed_at() -> None:
    """A newer version's kind is an error where the kind must be known."""
    with pytest.raises(ValueError, match="moon"):
        keyspace.item_parts(b"codeq/item/moon/acme/x")


def test_counters_belong_to_a_queue_and_a_tenant() -> None:
    """The default tenant is the empty one, not one called `_`."""
    assert ("render", "") == keyspace.stats_parts(keyspace.stats("render", ""))
    assert ("render", "acme") == keyspace.stats_parts(keyspace.stats("render", "acme"))


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
    """The prefix of a priority covers its tasks and no others."""
    key = keyspace.pending("a", "acme", priority=4, seq=1, task_id="t")

    assert key.startswith(keyspace.pending_prefix("a", "acme", 4))
    assert not key.startswith(keyspace.pending_prefix("a", "acme", 5))


@given(prefix=st.binary(min_size=1).filter(lambda prefix: prefix.strip(b"\xff")), tail=st.binary())
def test_a_prefix_range_holds_exactly_the_keys_with_that_prefix(prefix: bytes, tail: bytes) -> None:
    """The end is the first key that no longer begins with the prefix."""
    start, end = keyspace.prefix_range(prefix)

    assert start <= prefix + tail < end
    assert not end.startswith(prefix)


def test_a_ready_task_without_a_time_to_live_has_one_row() -> None:
    """The common case costs one index row."""
    assert (
        keyspace.pending("render", "acme", priority=2, seq=4, task_id="t"),
    ) == keyspace.index_keys(_task(State.READY, seq=4))


def test_a_delayed_task_wakes_at_the_first_of_its_two_instants() -> None:
    """A task has one timer row, for its due time or its earlier death."""
    assert keyspace.ttl(50, "t") in keyspace.index_keys(_task(State.DELAYED, due_ms=50))
    both = keyspace.index_keys(_task(State.DELAYED, due_ms=50, expires_ms=40))

    assert keyspace.ttl(40, "t") in both
    assert keyspace.ttl(50, "t") not in both


def test_an_outbox_job_or_an_end_is_found_by_its_instant() -> None:
    """Outbox jobs and expiring items have one timer row each; other items have none."""
    sweep = Sweep(tenant="", id="t.u", task_id="t", upload="u", due_ms=5)
    subscription = Subscription(
        tenant="acme", id="s", worker="ann", callback_url="https://w.example/", expires_ms=6
    )
    audit = Audit(
        tenant="acme", id="1-r", at_ms=1, actor="ops", action="a", target="t", expires_ms=7
    )
    timers = {item: _timers(item) for item in (_delivery(due_ms=4), sweep, subscription, audit)}

    assert [
        [(Family.OUTBOX, 4, (ItemKind.DELIVERY, "acme", "t.1"))],
        [(Family.OUTBOX, 5, (ItemKind.SWEEP, "", "t.u"))],
        [(Family.EXPIRY, 6, (ItemKind.SUBSCRIPTION, "acme", "s"))],
        [(Family.EXPIRY, 7, (ItemKind.AUDIT, "acme", "1-r"))],
    ] == list(timers.values())
    assert () == keyspace.item_index_keys(Topic(tenant="acme", id="q", name="Q"))
    assert () == keyspace.item_index_keys(Pause(tenant="acme", id="q"))


def test_dead_deliveries_are_listed_the_newest_first_and_are_no_jobs() -> None:
    """Each is in its tenant's list and expires by itself."""
    listed = []
    for died_ms in (1, 255, 256, 2**40):
        dead, expiry = keyspace.item_index_keys(_delivery(died_ms=died_ms, expires_ms=9))
        listed.append(dead)

        assert keyspace.family(dead) is Family.DEAD
        assert keyspace.family(expiry) is Family.EXPIRY
        assert "t.1" == keyspace.last_id(dead)
        assert dead.startswith(keyspace.dead_prefix("acme"))

    assert sorted(listed, reverse=True) == listed


def test_groups_that_go_on_are_listed_first_and_keep_their_place() -> None:
    """The newest first, and then the last that ended; what a member changes moves none."""
    one, two = (Group(tenant="acme", id=f"g{ms}", generation=1, created_ms=ms) for ms in (9, 8))
    ended = [replace(one, id="e", created_ms=1, ended_ms=ms, sealed_ms=1) for ms in (10**14, 9)]
    places = [keyspace.item_index_keys(each)[0] for each in (one, two, *ended)]

    assert sorted(places) == places
    assert places[0] == keyspace.item_index_keys(replace(one, live=1, rows=1))[0]
    assert all(keyspace.family(key) is Family.GROUPS for key in places)
    assert all(key.startswith(groups_prefix("acme")) for key in places)


def test_ended_tasks_are_listed_the_newest_first_and_by_their_end() -> None:
    """The tasks that ended before an instant are the end of the list."""
    keys = [
        keyspace.ended(QueuePlace.DLQ, "q", "acme", ended_ms=ended_ms, task_id="t")
        for ended_ms in (256, 255, 1)
    ]
    start = keyspace.ended_before(QueuePlace.DLQ, "q", "acme", 256)

    assert sorted(keys) == keys
    assert [False, True, True] == [key >= start for key in keys]
    assert ["t"] * 3 == [keyspace.last_id(key) for key in keys]


def test_a_dead_letter_lies_in_the_queue_that_keeps_it() -> None:
    """The queue of its command does not matter."""
    task = replace(_task(State.DEAD), dead_queue="graves")
    place, _ = keyspace.index_keys(task)

    assert ("graves", "acme") == keyspace.queue_of(place)
    assert keyspace.family(place) is Family.DLQ


def _delivery(*, due_ms: int = 0, died_ms: int = 0, expires_ms: int = 0) -> Delivery:
    return Delivery(
        tenant="acme",
        id="t.1",
        task_id="t",
        command="render",
        url="https://hooks.example/",
        created_ms=1,
        due_ms=due_ms,
        died_ms=died_ms,
        expires_ms=expires_ms,
    )


def _timers(item: Item) -> list[tuple[Family, int, tuple[ItemKind, str, str]]]:
    return [
        (keyspace.family(key), keyspace.item_timer_ms(key), keyspace.item_parts(key))
        for key in keyspace.item_index_keys(item)
    ]


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


def test_followers_get_results_counters_policies_and_jobs() -> None:
    """No other row of an entry is followed, such as the edges of a graph; deletions are."""
    task, item = _task(State.READY, seq=1), keyspace.ITEM_PREFIX + b"topic/acme/q"
    rows: dict[bytes, bytes | None] = dict.fromkeys(keyspace.index_keys(task), b"")
    rows |= {
        keyspace.task(task.id): b"t",
        keyspace.payload(task.id): b"{}",
        keyspace.result(task.id): b"r",
        keyspace.stats("q", "acme"): b"s",
        keyspace.meta("clock"): b"c",
        item: None,
        keyspace.OUTBOX_PREFIX + b"12345678/delivery/acme/d": b"",
    }
    rows |= {
        keyspace.item(kind, "acme", "topic"): b"i"
        for kind in (ItemKind.EDGE, ItemKind.MEMBER, ItemKind.LOG, ItemKind.STEP, ItemKind.LANE)
    }

    assert {
        keyspace.result(task.id): b"r",
        keyspace.stats("q", "acme"): b"s",
        item: None,
        keyspace.OUTBOX_PREFIX + b"12345678/delivery/acme/d": b"",
    } == followed_in(rows)[0]


_names = st.sampled_from(["pending", "done", "delayed", "work", "q"])


@given(queue=_names, tenant=_names | st.just(""), priority=st.integers(0, 9), seq=NUMBERS)
def test_a_ready_task_schedules_its_queue_whatever_that_is_called(
    queue: str, tenant: str, priority: int, seq: int
) -> None:
    """A queue or a tenant may be called like a place."""
    key = keyspace.pending(queue, tenant, priority=priority, seq=seq, task_id="pending")

    assert [((queue, tenant), key)] == scheduled({key: b""})


@given(queue=_names, tenant=_names | st.just(""), due_ms=NUMBERS)
def test_a_task_elsewhere_in_its_queue_schedules_nothing_by_its_place(
    queue: str, tenant: str, due_ms: int
) -> None:
    """It is counted or timed by other rows."""
    places = (
        keyspace.delayed(queue, tenant, due_ms=due_ms, task_id="pending"),
        keyspace.inprog(queue, tenant, task_id="pending"),
        keyspace.ended(QueuePlace.DONE, queue, tenant, ended_ms=due_ms, task_id="pending"),
    )

    assert [] == scheduled(dict.fromkeys(places, b""))
