"""Polls: the workers that ask for work."""

from __future__ import annotations

import tracemalloc

import msgspec

from codeq_cluster.broker.polls import COMMANDS_MAX, POLLS_BYTES_MAX, Poll, Polls


class Clock:
    """Unix milliseconds that a test moves."""

    now_ms = 1000

    def __call__(self) -> int:
        """Return the instant."""
        return self.now_ms


def test_a_worker_is_known_by_its_last_claim() -> None:
    """The entry has the claim's time and commands, and whether the claim still waits."""
    clock = Clock()
    polls = Polls(clock)
    poll = polls.begun("acme", "w1", ("Resize", "render"))
    waiting = [Poll(each.worker, each.last_ms, each.waiting) for each in polls.of("acme")]
    poll.waiting -= 1
    clock.now_ms += 500
    polls.begun("acme", "w1", ()).waiting -= 1

    assert [Poll("w1", 1000, 1)] == waiting
    assert [Poll("w1", 1500, 0, ())] == polls.of("acme")
    assert [] == polls.of("other")


def test_claims_that_wait_side_by_side_are_counted() -> None:
    """A worker may have many connections."""
    polls = Polls(Clock())
    polls.begun("acme", "w1", ("a",))
    second = polls.begun("acme", "w1", ("B",))
    both = polls.of("acme")[0].waiting
    second.waiting -= 1

    assert 2 == both
    assert [Poll("w1", 1000, 1, ("b",))] == polls.of("acme")


def test_memory_does_not_grow_with_workers_nor_with_commands() -> None:
    """Beyond the bound the tenant with the most loses its oldest entry."""
    polls = Polls(Clock())
    polls.begun("other", "w1", ("a",))
    tracemalloc.start()
    for number in range(2_000):
        commands = tuple(f"{number}.{n}.{'x' * 110}" for n in range(COMMANDS_MAX + 1))
        polls.begun("acme", f"w{number}", commands)
        polls.begun("acme", "w1", ())
    taken_here = tracemalloc.Filter(True, "*/codeq_cluster/*")  # Other threads take some, too.
    kept = tracemalloc.take_snapshot().filter_traces([taken_here])
    tracemalloc.stop()
    known = {poll.worker: poll for poll in polls.of("acme")}

    assert ["w1"] == [poll.worker for poll in polls.of("other")]
    assert "w0" not in known
    assert "w1" in known
    assert COMMANDS_MAX == len(known["w1999"].commands)
    assert 0 < sum(each.size for each in kept.traces) <= POLLS_BYTES_MAX
    assert len(msgspec.msgpack.encode(polls.of("acme"))) <= POLLS_BYTES_MAX


def test_as_many_workers_as_a_large_tenant_has_are_known() -> None:
    """Each asks for a few commands."""
    polls = Polls(Clock())
    for number in range(10_000):
        polls.begun("acme", f"worker-{number}", ("resize", "render", "scan"))

    assert 10_000 == len(polls.of("acme"))
