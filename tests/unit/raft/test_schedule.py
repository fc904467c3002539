"""Schedule: the time of a group's next turn."""

from __future__ import annotations

from codeq_cluster.raft.schedule import Schedule
from tests.simulator.clock import SimClock, SimTimers

TURN_S = 0.01


class Turns:
    """A schedule on virtual time, and when its turns began, in seconds from the start.

    Attributes:
        due: When the next turn is due, on the clock.
    """

    def __init__(self) -> None:
        self.clock = SimClock()
        self._start = self.clock.now
        self.due = float("inf")
        self.began: list[float] = []
        self.failures: list[BaseException] = []
        self.schedule = Schedule(
            SimTimers(self.clock), turn_s=TURN_S, due=lambda: self.due, failed=self.failures.append
        )
        self.schedule.start(self.turn)

    def turn(self) -> None:
        """Note when a turn began."""
        self.began.append(round(self.clock.now - self._start, 6))

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.clock.run_until(self.clock.now + seconds)


def test_one_turn_serves_all_who_want_one() -> None:
    """A turn may be requested any number of times before it begins."""
    turns = Turns()

    for _ in range(5):
        turns.schedule.want()
    turns.run(1.0)

    assert [0.0] == turns.began


def test_no_turn_begins_during_a_flush() -> None:
    """A requested turn and a due one both wait until the flush ends, and none is lost."""
    turns = Turns()
    schedule = turns.schedule
    schedule.flushing = True

    schedule.want()
    asked, schedule.wanted = schedule.wanted, False
    turns.due = turns.clock.now + 0.5
    schedule.arm(turns.due)
    turns.run(1.0)

    assert asked
    assert schedule.wanted
    assert not turns.began


def test_a_flush_that_begins_before_the_scheduled_turn_puts_it_off() -> None:
    """The request outlasts the flush."""
    turns = Turns()

    turns.schedule.want()
    turns.schedule.flushing = True
    turns.run(1.0)

    assert turns.schedule.wanted
    assert not turns.began


def test_turns_are_spaced_only_while_operations_wait() -> None:
    """A lone turn begins at once; under load the next one leaves operations time to gather."""
    turns = Turns()
    turns.schedule.want()
    turns.run(0.002)

    turns.schedule.want()
    turns.run(0.002)
    turns.schedule.queued = True
    turns.schedule.want()
    turns.run(1.0)

    assert turns.began == [0.0, 0.002, 0.002 + TURN_S]


def test_a_deadline_that_moves_away_costs_no_new_timer() -> None:
    """The old timer fires without a turn, and is set again for the later time."""
    turns = Turns()
    start = turns.clock.now
    turns.due = start + 0.1
    turns.schedule.arm(turns.due)

    turns.due = start + 0.3
    turns.schedule.arm(turns.due)
    turns.run(0.2)
    early = list(turns.began)
    turns.run(0.2)

    assert not early
    assert [0.3] == turns.began


def test_a_deadline_that_comes_nearer_is_kept() -> None:
    """The timer that was set for later is cancelled."""
    turns = Turns()
    start = turns.clock.now
    turns.due = start + 0.3
    turns.schedule.arm(turns.due)

    turns.due = start + 0.1
    turns.schedule.arm(turns.due)
    turns.run(0.2)

    assert [0.1] == turns.began


def test_a_stopped_schedule_takes_no_turn() -> None:
    """No turn comes, whether it was scheduled, due, or requested later."""
    turns = Turns()
    turns.schedule.want()
    turns.due = turns.clock.now + 0.1
    turns.schedule.arm(turns.due)

    turns.schedule.stop()
    turns.schedule.want()
    turns.run(1.0)

    assert not turns.began


def test_a_schedule_that_starts_again_takes_one_turn() -> None:
    """A turn asked for before the stop is the next one after it."""
    turns = Turns()
    turns.schedule.want()

    turns.schedule.stop()
    turns.schedule.start(turns.turn)
    turns.schedule.want()
    turns.run(1.0)

    assert [0.0] == turns.began


def test_a_turn_that_fails_is_reported() -> None:
    """The loop must not swallow the error: no other turn may follow."""
    turns = Turns()
    error = OSError("no disk")

    def fail() -> None:
        raise error

    turns.schedule.start(fail)
    turns.schedule.want()
    turns.run(1.0)

    assert [error] == turns.failures
