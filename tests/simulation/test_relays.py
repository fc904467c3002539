"""Relays: one story for each way in which a leader's death could lose a relay or double it."""

from __future__ import annotations

import pytest

from codeq_cluster.broker.requests.producer import fingerprint_of
from codeq_cluster.broker.values import NewResult
from codeq_cluster.codec import entries, keyspace, line_keys, records
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Delete
from codeq_cluster.core.outcomes import Changed, Claimed, Submitted
from codeq_cluster.core.relays import RelayLink
from codeq_cluster.core.sharding import shard_of, shard_of_key
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Task
from tests.simulator.brokers import SimBrokers
from tests.simulator.invariants import InvariantBroken

from .moves import PATIENCE_S, SHARDS, STEP_S, asked_closely, at_rest, lead


@pytest.fixture
def brokers(brokers: SimBrokers) -> SimBrokers:
    """Return three nodes, of which A leads the shard of `parent` and B the other one."""
    brokers.client_s = lambda: STEP_S / 4
    return brokers


def claimed(brokers: SimBrokers, node_id: str, command: str) -> Task:
    """Claim a task."""
    got: Claimed = asked_closely(
        brokers,
        node_id,
        lambda broker: broker.claim(
            "", "ann", commands=(command,), count=1, lease_ms=60_000, wait_s=0, timeout_s=4
        ),
    )
    [task] = got.tasks
    return task


def ended(brokers: SimBrokers, node_id: str, task: Task, *following: Create) -> None:
    """End a task, with the tasks that follow it."""
    digest = f"{len(following):032x}" if following else ""
    new = NewResult(task_id=task.id, status="COMPLETED", next=following, next_digest=digest)
    [answer] = asked_closely(
        brokers, node_id, lambda broker: broker.submit("", "ann", (new,), timeout_s=4)
    )
    assert isinstance(answer, Submitted)


def with_a_parent(brokers: SimBrokers) -> tuple[Task, Create]:
    """Lease a task; return it, and one to follow it whose key leads to the other shard.

    The leaders of the two shards are different nodes afterwards: A has the parent's.
    """
    asked_closely(
        brokers,
        "A",
        lambda broker: broker.create("", [Create(command="parent", payload="{}")], timeout_s=4),
    )
    parent = claimed(brokers, "A", "parent")
    home = shard_of(parent.id, SHARDS)
    lead(brokers, home, "A")
    lead(brokers, 1 - home, "B")
    keys = (f"k{number}" for number in range(100))
    key = next(key for key in keys if shard_of_key("", key, SHARDS) != home)
    fingerprint = fingerprint_of("child", "{}")
    child = Create(command="child", payload="{}", idempotency_key=key, fingerprint=fingerprint)
    return parent, child


def cut_off(brokers: SimBrokers, node_id: str) -> None:
    """Cut a node off from its peers."""
    peers = [peer for peer in brokers.ids if peer != node_id]
    brokers.cut({wire for peer in peers for wire in ((node_id, peer), (peer, node_id))})


def children(brokers: SimBrokers) -> list[Task]:
    """Return the tasks that follow others, as node B has them."""
    rows = [row for state in brokers.nodes["B"].states for row in state.scan(b"", b"\xff", 9999)]
    tasks = [
        records.decode_task(value)
        for key, value in rows
        if keyspace.family(key) is keyspace.Family.TASK
    ]
    return [task for task in tasks if task.more is not None]


def finish_at_once(brokers: SimBrokers, parent: Task, child: Create) -> None:
    """End the parent at its leader, and stop as soon as the entry is applied."""
    new = NewResult(task_id=parent.id, status="COMPLETED", next=(child,), next_digest="0" * 32)
    brokers.outside.create_task(
        brokers.request(
            "A", lambda broker: broker.submit("", "ann", (new,), timeout_s=4), give_up_s=PATIENCE_S
        )
    ).add_done_callback(lambda work: work.exception())
    assert brokers.run_until(lambda: brokers.relays.count == 1, seconds=PATIENCE_S, step_s=STEP_S)


def taken(brokers: SimBrokers, home: int) -> tuple[bool, bool]:
    """Return whether the other shard has the relay, and whether the home shard knows it."""
    there = brokers.relays.link(1 - home, f"from.{home}")
    here = brokers.relays.link(home, f"to.{1 - home}")
    return there.number > 0, here.number > 0


def test_a_follow_up_reaches_the_other_shard(brokers: SimBrokers) -> None:
    """It is made once, by the parent, and may then be worked on."""
    parent, child = with_a_parent(brokers)
    ended(brokers, "C", parent, child)
    at_rest(brokers)
    [made] = children(brokers)
    ended(brokers, "C", claimed(brokers, "C", "child"))

    assert made.more is not None
    assert (parent.id, parent.id) == (made.more.parent_id, made.more.root_id)
    assert 1 - shard_of(parent.id, SHARDS) == shard_of(made.id, SHARDS)


def test_a_leader_that_dies_before_it_sends_leaves_the_relay_to_the_next(
    brokers: SimBrokers,
) -> None:
    """The result is committed, so its follow-up must come."""
    parent, child = with_a_parent(brokers)
    finish_at_once(brokers, parent, child)
    unsent = taken(brokers, shard_of(parent.id, SHARDS))
    brokers.crash("A", power=True)
    brokers.run(3)
    made = children(brokers)
    brokers.start("A")
    at_rest(brokers)

    assert (False, False) == unsent
    assert ["child"] == [task.command for task in made]
    assert made == children(brokers)


def test_a_relay_waits_for_a_shard_that_is_out(brokers: SimBrokers) -> None:
    """It stays in its line while no two nodes hear each other, and leaves when they do."""
    parent, child = with_a_parent(brokers)
    home = shard_of(parent.id, SHARDS)
    finish_at_once(brokers, parent, child)
    brokers.cut({(one, other) for one in brokers.ids for other in brokers.ids if one != other})
    brokers.run(3)
    waiting, sent = brokers.relays.waiting, taken(brokers, home)
    at_rest(brokers)

    assert (1, (False, False)) == (waiting, sent)
    assert (True, True) == taken(brokers, home)
    assert 1 == len(children(brokers))


def test_a_relay_is_not_done_again_after_its_task_is_gone(brokers: SimBrokers) -> None:
    """The next leader sends it again, when its task has run, ended and been deleted."""
    parent, child = with_a_parent(brokers)
    home = shard_of(parent.id, SHARDS)
    finish_at_once(brokers, parent, child)
    assert brokers.run_until(lambda: taken(brokers, home)[0], seconds=PATIENCE_S, step_s=STEP_S)
    cut_off(brokers, "A")
    made = claimed(brokers, "B", "child")
    ended(brokers, "B", made)
    delete = Delete(request="d", tenant="", ids=(made.id,), by="op")
    engine = brokers.nodes["B"].engines[1 - home]
    gone = asked_closely(brokers, "B", lambda _broker: engine.operate([delete]))
    before = taken(brokers, home)
    at_rest(brokers)

    assert [Changed(1)] == gone
    assert (True, False) == before
    assert (True, True) == taken(brokers, home)
    assert [] == children(brokers)


def committed(brokers: SimBrokers, shard: int, rows: dict[bytes, bytes | None]) -> None:
    """Report an entry of a shard that writes these rows."""
    watch = brokers.watches[shard]
    payload = entries.encode(entries.Entry(1, 1, 1, 1, rows), level=LEVEL)
    watch.applied("A", max(watch._entries) + 1, 1, payload)


def link_row(link: RelayLink) -> dict[bytes, bytes | None]:
    """Return the row of a link."""
    return {keyspace.item(ItemKind.RELAY_LINK, "", link.id): records.encode(link)}


@pytest.mark.parametrize("way", ["from", "to"])
@pytest.mark.parametrize("step", [1, -1], ids=["too many", "back"])
def test_w11_numbers_that_do_not_agree(brokers: SimBrokers, way: str, step: int) -> None:
    """An entry that gives a link a wrong number is found before it is applied."""
    parent, child = with_a_parent(brokers)
    ended(brokers, "C", parent, child)
    at_rest(brokers)
    home = shard_of(parent.id, SHARDS)
    shard, other = (1 - home, home) if way == "from" else (home, 1 - home)
    name = f"{way}.{other}"
    link = RelayLink(id=name, number=brokers.relays.link(shard, name).number + step)

    with pytest.raises(InvariantBroken, match=r"^W11 "):
        committed(brokers, shard, link_row(link))


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "too many"])
def test_w11_a_line_without_its_relay(brokers: SimBrokers, lost: bool) -> None:
    """Each relay that waits has its row, and no row is without a relay."""
    parent, child = with_a_parent(brokers)
    finish_at_once(brokers, parent, child)
    home = shard_of(parent.id, SHARDS)
    [key] = brokers.relays.lines(home)
    number = line_keys.forward_parts(key)[1]
    start = line_keys.forward_from(1 - home, number)
    row = key if lost else line_keys.forward_from(1 - home, number + 1) + key[len(start) :]
    rows: dict[bytes, bytes | None] = {row: None if lost else b""}

    with pytest.raises(InvariantBroken, match=r"^W11 "):
        committed(brokers, home, rows)


def test_w12_a_follow_up_that_is_made_again(brokers: SimBrokers) -> None:
    """Also if the one before was deleted."""
    parent, child = with_a_parent(brokers)
    ended(brokers, "C", parent, child)
    at_rest(brokers)
    [made] = children(brokers)
    key, shard = keyspace.task(made.id), shard_of(made.id, SHARDS)
    committed(brokers, shard, {key: None})

    with pytest.raises(InvariantBroken, match=r"^W12 "):
        committed(brokers, shard, {key: records.encode(made)})
