"""Polls: the workers that ask for work."""

from __future__ import annotations

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
    """Beyond the bound the oldest entry is forgotten."""
    polls = Polls(Clock())
    for number in range(POLLS_MAX + 1):
        polls.begun("acme", f"w{number}", tuple(f"c{n}" for n in range(COMMANDS_MAX + 1)))
        polls.begun("acme", "w1", ())
    known = {poll.worker: poll for poll in polls.of("acme")}

    polls.begun("other", "w1", ())

    assert ["w1"] == [poll.worker for poll in polls.of("other")]
    assert POLLS_MAX - 1 == len(polls.of("acme")), "the tenant with the most made room"
    assert POLLS_MAX == len(known)
    assert "w0" not in known
    assert "w1" in known
    assert COMMANDS_MAX == len(known[f"w{POLLS_MAX}"].commands)
