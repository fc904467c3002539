"""Scrapes: making the text takes a bounded share of the time, and the text is never old."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from codeq_cluster.telemetry.scrapes import RESTS, Scrapes


class Counted:
    """A text that counts its makings, and a clock that shows their duration."""

    def __init__(self, *, took_s: float = 0.0) -> None:
        self.made = 0
        self._now_s = self._ticks(took_s)

    def text(self) -> bytes:
        """Make it."""
        self.made += 1
        return b"%d" % self.made

    def now_s(self) -> float:
        """Return the time: before and after each making."""
        return next(self._now_s)

    @staticmethod
    def _ticks(took_s: float) -> Iterator[float]:
        now_s = 0.0
        while True:
            yield now_s
            now_s += took_s


async def test_concurrent_scrapes_share_one_text() -> None:
    """Many callers cost as much as one."""
    counted = Counted()
    scrapes = Scrapes(counted.text, clock=counted.now_s)

    texts = await asyncio.gather(*(scrapes.text() for _ in range(100)))

    assert [b"1"] * 100 == texts


async def test_no_scrape_gets_a_text_made_before_it() -> None:
    """Events counted before a scrape are in it."""
    counted = Counted()
    scrapes = Scrapes(counted.text, clock=counted.now_s)

    assert [b"1", b"2", b"3"] == [await scrapes.text() for _ in range(3)]


async def test_after_a_text_that_took_long_the_node_does_something_else() -> None:
    """The pause is a multiple of that time."""
    counted = Counted(took_s=0.02)
    scrapes = Scrapes(counted.text, clock=counted.now_s)
    begun_s = asyncio.get_running_loop().time()
    await scrapes.text()
    await scrapes.text()
    passed_s = asyncio.get_running_loop().time() - begun_s

    assert passed_s >= 0.02 * RESTS * 0.9
    assert 2 == counted.made


async def test_a_caller_that_gives_up_cancels_no_other() -> None:
    """A client that vanishes cancels only its own request."""
    counted = Counted()
    scrapes = Scrapes(counted.text, clock=counted.now_s)
    gone, waiting = (asyncio.create_task(scrapes.text()) for _ in range(2))
    asyncio.get_running_loop().call_soon(gone.cancel)

    assert b"1" == await waiting
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_a_failure_reaches_its_callers_and_the_next_text_is_tried_again() -> None:
    """A source that fails once must not silence the metrics for ever."""
    counted = Counted()

    def text() -> bytes:
        if not counted.made:
            counted.text()
            raise RuntimeError("a gauge cannot be read")
        return counted.text()

    scrapes = Scrapes(text, clock=counted.now_s)

    with pytest.raises(RuntimeError, match="a gauge"):
        await scrapes.text()
    assert b"2" == await scrapes.text()
