"""Throttle: wrong log-ins are slowed down per address."""

from __future__ import annotations

from codeq_cluster.ui.throttle import ADDRESSES_MAX, FAILURES, Throttle

SECOND_NS = 10**9


class Clock:
    """Monotonic nanoseconds that a test moves."""

    now_ns = 0

    def __call__(self) -> int:
        """Return the instant."""
        return self.now_ns


def test_an_address_that_guesses_has_to_wait() -> None:
    """Ten wrong tokens are allowed at once, then one in six seconds."""
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(FAILURES.burst):
        assert 0 == throttle.wait_s("a")
        throttle.failed("a")

    assert 6 == throttle.wait_s("a")
    assert 0 == throttle.wait_s("b")
    clock.now_ns += 6 * SECOND_NS
    assert 0 == throttle.wait_s("a")
    throttle.failed("a")
    assert 6 == throttle.wait_s("a")


def test_asking_for_the_wait_makes_it_no_longer() -> None:
    """A person who returns too early is not punished for it."""
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(FAILURES.burst):
        throttle.failed("a")
    waits = []
    for _ in range(6):
        waits.append(throttle.wait_s("a"))
        clock.now_ns += SECOND_NS

    assert [6, 5, 4, 3, 2, 1] == waits
    assert 0 == throttle.wait_s("a")


def test_memory_does_not_grow_with_the_addresses_that_try() -> None:
    """The address that failed longest ago is dropped, the latest ones are kept."""
    throttle = Throttle(Clock())
    for _ in range(FAILURES.burst):
        throttle.failed("first")
    for number in range(ADDRESSES_MAX - 1):
        throttle.failed(str(number))
    known = throttle.wait_s("first")
    throttle.failed("one more")

    assert 6 == known
    assert 0 == throttle.wait_s("first")
