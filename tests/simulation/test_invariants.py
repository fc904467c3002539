"""For each invariant of the simulated brokers, a fault that breaks it is found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec
import pytest

from codeq_cluster.broker.service import Broker
from codeq_cluster.codec import entries, keyspace, records
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Claimed, Created
from codeq_cluster.core.task import State, Task
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.safe_syncobj import SafeSyncObj
from tests.simulator.brokers import AnswerLost, NotReached, SimBrokers
from tests.simulator.invariants import Invariant, InvariantBroken
from tests.simulator.scenes import settled_brokers

_T = TypeVar("_T")


@pytest.fixture
def brokers() -> Iterator[SimBrokers]:
    """Yield three nodes with one shard that A leads, and a task."""
    brokers = settled_brokers(shards=1)
    for _ in range(20):
        created(brokers)
    assert brokers.run_until(brokers.converged, seconds=1)
    yield brokers
    brokers.close()


def asked(brokers: SimBrokers, ask: Callable[[Broker], Awaitable[_T]], node_id: str = "A") -> _T:
    """Run one action on a node's broker and return its result."""
    work = brokers.outside.create_task(brokers.request(node_id, ask, give_up_s=5))
    assert brokers.run_until(work.done, seconds=10)
    return work.result()


def created(brokers: SimBrokers) -> Task:
    """Create a task."""
    new = (Create(command="work", payload="{}"),)
    [made] = asked(brokers, lambda broker: broker.create("", new, timeout_s=4), "B")
    assert isinstance(made, Created)
    return made.task


def created_and_told(brokers: SimBrokers) -> None:
    """Create a task that every node applies; a second create announces the commit of the first."""
    created(brokers)
    created(brokers)


def claimed(brokers: SimBrokers) -> Task:
    """Claim a task."""
    got: Claimed = asked(
        brokers,
        lambda broker: broker.claim(
            "", "ann", commands=("work",), count=1, lease_ms=9000, wait_s=0, timeout_s=4
        ),
    )
    return got.tasks[0]


def engine(brokers: SimBrokers, node_id: str) -> SafeSyncObj:
    """Return the library's state of the shard."""
    return brokers.nodes[node_id].groups[0]._replica.engine


def log(brokers: SimBrokers, node_id: str) -> Journal:
    """Return a node's log."""
    return brokers.nodes[node_id].groups[0]._replica.journal


def broken(invariant: Invariant) -> pytest.RaisesExc[InvariantBroken]:
    """Expect the given invariant to be found broken."""
    return pytest.raises(InvariantBroken, match=f"^{invariant.name} ")


def test_the_real_broker_answers_on_virtual_time(brokers: SimBrokers) -> None:
    """A task is created at one node and claimed at another, and no fault is found."""
    task = claimed(brokers)

    assert (State.LEASED, 1, 1) == (task.state, task.attempts, task.lease_token)
    assert brokers.run_until(brokers.converged, seconds=1)
    brokers.check_converged()


def test_a_node_that_is_down_is_not_reached_and_one_that_dies_answers_nobody(
    brokers: SimBrokers,
) -> None:
    """A client can tell an unsent request from one that may have been done."""
    new = (Create(command="work", payload="{}"),)
    brokers.client_s = lambda: 0.01

    def ask() -> asyncio.Task[object]:
        return brokers.outside.create_task(
            brokers.request("A", lambda b: b.create("", new, timeout_s=4), give_up_s=5)
        )

    lost = ask()
    brokers.run(0.015)
    brokers.crash("A", power=False)
    unsent = ask()
    brokers.run(0.1)

    with pytest.raises(AnswerLost):
        lost.result()
    with pytest.raises(NotReached):
        unsent.result()


def test_w1_two_leaders_in_a_term(brokers: SimBrokers) -> None:
    """A follower that claims to lead the term is found."""
    engine(brokers, "B")._SyncObj__setState(2)

    with broken(Invariant.W1):
        brokers.look()


def test_w2_another_entry_at_an_index(brokers: SimBrokers) -> None:
    """Every node must apply the same entry at an index."""
    index, watch = brokers.nodes["A"].engines[0].applied_index, brokers.watches[0]

    with broken(Invariant.W2):
        watch.applied("B", index, 1, b"something else")


@pytest.mark.parametrize("off", [-1, 5])
def test_w3_a_commit_index_that_moves_wrongly(brokers: SimBrokers, off: int) -> None:
    """A commit index that goes back, or past the end of the log, is found."""
    engine(brokers, "B")._SyncObj__raftCommitIndex += off

    with broken(Invariant.W3):
        brokers.look()


def test_w4_a_disk_that_forgets_what_was_synced(brokers: SimBrokers) -> None:
    """A node that returns without an entry it acknowledged is found when it starts."""
    [disk] = brokers.disks["B"]
    created(brokers)
    brokers.crash("B", power=False)
    [segment] = disk.segments.names()
    disk.segments.tear(segment, keep=0.5)

    with broken(Invariant.W4):
        brokers.start("B")


def test_w4_a_second_vote(brokers: SimBrokers) -> None:
    """A node that votes twice in a term is found when it sends the second vote."""
    group, watch = brokers.nodes["B"].groups[0], brokers.watches[0]
    watch.sent("B", "A", {"t": 4, "e": 99}, group)

    with broken(Invariant.W4):
        watch.sent("B", "C", {"t": 4, "e": 99}, group)


def test_w5_a_leader_that_counts_on_too_much(brokers: SimBrokers) -> None:
    """The entries that it counts as stored by a peer must be in the peer's log on disk."""
    leader = engine(brokers, "A")
    leader._SyncObj__raftMatchIndex[leader._peers["B"]] += 1

    with broken(Invariant.W5):
        brokers.look()


def test_w6_two_logs_that_part_and_meet_again(brokers: SimBrokers) -> None:
    """If two logs share an entry, they share all entries before it."""
    theirs = log(brokers, "B")
    middle = theirs.last - 3
    theirs._run_starts[1:] = [middle, middle + 1]
    theirs._run_terms[1:] = [theirs.last_term + 1, theirs.last_term]
    brokers.watches[0]._compared.clear()

    with broken(Invariant.W6):
        brokers.look()


def test_w7_a_committed_entry_that_is_cut_off(brokers: SimBrokers) -> None:
    """A committed entry stays the same in every log that has it."""
    mine = log(brokers, "A")
    mine._run_starts.append(engine(brokers, "A").commit_index)
    mine._run_terms.append(mine.last_term + 1)

    with broken(Invariant.W7):
        brokers.look()


def test_w8_a_state_of_its_own(brokers: SimBrokers) -> None:
    """A replica whose state differs is found at its next entry."""
    brokers.nodes["B"].states[0].digest = bytes(range(16))

    with broken(Invariant.W8):
        created_and_told(brokers)


def test_w8_a_row_of_its_own(brokers: SimBrokers) -> None:
    """Equal entries that produced different rows are found by a closer check."""
    brokers.look_closely()
    [disk] = brokers.disks["B"]
    key, _ = disk.last(b"state/", b"state0") or (b"", b"")
    disk.damage(key, lambda row: row + b" ")

    with broken(Invariant.W8):
        brokers.look_closely()


@pytest.mark.parametrize(
    "change",
    [
        {"lease_token": 0},
        {"attempts": 3},
        {"attempts": 9, "max_attempts": 5},
        {"claim": "another"},
    ],
    ids=["token falls", "attempts jump", "too many attempts", "leased again with the same token"],
)
def test_w9_a_forbidden_change_of_a_task(brokers: SimBrokers, change: dict[str, object]) -> None:
    """An entry that makes a forbidden change to a leased task is found before it is applied."""
    task = claimed(brokers)

    with broken(Invariant.W9):
        decided(brokers, msgspec.structs.replace(task, **change))


def test_w9_a_task_that_changes_after_its_end(brokers: SimBrokers) -> None:
    """A task that has ended must not be claimed again."""
    task = claimed(brokers)
    decided(brokers, msgspec.structs.replace(task, state=State.DONE))

    with broken(Invariant.W9):
        decided(brokers, msgspec.structs.replace(task, state=State.READY))


def decided(brokers: SimBrokers, task: Task) -> None:
    """Report an entry that writes a task."""
    rows: dict[bytes, bytes | None] = {keyspace.task(task.id): records.encode(task)}
    watch = brokers.watches[0]
    payload = entries.encode(entries.Entry(1, 1, 1, 1, rows), level=LEVEL)
    watch.applied("A", max(watch._entries) + 1, 1, payload)


def test_w10_replicas_that_do_not_come_together(brokers: SimBrokers) -> None:
    """A node that is cut off is behind, and is reported."""
    brokers.cut({("A", "C"), ("B", "C")})
    created(brokers)

    with broken(Invariant.W10):
        brokers.check_converged()


def test_w10_a_shard_without_a_leader(brokers: SimBrokers) -> None:
    """A shard without a majority cannot come to rest."""
    brokers.crash("A", power=True)
    brokers.crash("B", power=True)
    assert brokers.run_until(lambda: brokers.leader(0) is None, seconds=5)

    with broken(Invariant.W10):
        brokers.check_converged()


def test_a_replica_that_stops_itself_is_reported(brokers: SimBrokers) -> None:
    """A bug that ends a node ends the run."""
    brokers.nodes["B"].states[0].applied_index += 1

    with pytest.raises(InvariantBroken, match="B stopped itself"):
        created_and_told(brokers)
