"""Throttle: wrong log-ins are slowed down per address."""

from __future__ import annotations

from codeq_cluster.api.http.throttle import ADDRESSES_MAX, Throttle
from codeq_cluster.ui.entry import WRONG_TOKENS

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
    throttle = Throttle(WRONG_TOKENS, clock)

    assert [0] * WRONG_TOKENS.burst + [6] == [
        throttle.failed("a") for _ in range(WRONG_TOKENS.burst + 1)
    ]
    assert 0 == throttle.failed("b")
    clock.now_ns += 6 * SECOND_NS
    assert [0, 6] == [throttle.failed("a"), throttle.failed("a")]


def test_a_try_that_comes_too_early_makes_the_wait_no_longer() -> None:
    """A person who returns too early is not punished for it."""
    clock = Clock()
    throttle = Throttle(WRONG_TOKENS, clock)
    for _ in range(WRONG_TOKENS.burst):
        throttle.failed("a")
    waits = []
    for _ in range(6):
        waits.append(throttle.failed("a"))
        clock.now_ns += SECOND_NS

    assert [6, 5, 4, 3, 2, 1] == waits
    assert 0 == throttle.failed("a")


def test_memory_does_not_grow_with_the_addresses_that_try() -> None:
    """The address that failed longest ago is dropped, the latest ones are kept."""
    throttle = Throttle(WRONG_TOKENS, Clock())
    for _ in range(WRONG_TOKENS.burst):
        throttle.failed("first")
    for number in range(ADDRESSES_MAX):
        throttle.failed(str(number))

    assert 0 == throttle.failed("first")
