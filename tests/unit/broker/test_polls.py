"""Polls: the workers that ask for work."""

from __future__ import annotations

import pytest

from codeq_cluster.broker.polls import COMMANDS_MAX, POLLS_MAX, Poll, Polls


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
    with polls.polling("acme", "w1", ("Resize", "render")):
        waiting = [Poll(each.worker, each.last_ms, each.waiting) for each in polls.of("acme")]
    clock.now_ms += 500
    with polls.polling("acme", "w1", ()):
        pass

    assert [Poll("w1", 1000, 1)] == waiting
    assert [Poll("w1", 1500, 0, ())] == polls.of("acme")
    assert [] == polls.of("other")


def test_claims_that_wait_side_by_side_are_counted() -> None:
    """A worker may have many connections; a claim that fails no longer waits."""
    polls = Polls(Clock())

    def fail() -> None:
        with polls.polling("acme", "w1", ("B",)):
            assert 2 == polls.of("acme")[0].waiting
            raise ConnectionError

    with polls.polling("acme", "w1", ("a",)):
        with pytest.raises(ConnectionError):
            fail()

        assert [Poll("w1", 1000, 1, ("b",))] == polls.of("acme")


def test_memory_does_not_grow_with_workers_nor_with_commands() -> None:
    """Beyond the bound the oldest entry is forgotten."""
    polls = Polls(Clock())
    for number in range(POLLS_MAX + 1):
        with polls.polling("acme", f"w{number}", tuple(f"c{n}" for n in range(COMMANDS_MAX + 1))):
            pass
        with polls.polling("acme", "w1", ()):
            pass
    known = {poll.worker: poll for poll in polls.of("acme")}

    assert POLLS_MAX == len(known)
    assert "w0" not in known
    assert "w1" in known
    assert COMMANDS_MAX == len(known[f"w{POLLS_MAX}"].commands)
