"""Portions: long loops that let other work on the event loop have its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

_AT_ONCE: Final = 500  # At a few microseconds each, one or two milliseconds.
BODIES_AT_ONCE: Final = 100  # Items of a request's body, which take ten times as long.

T = TypeVar("T")


async def in_portions(things: Iterable[T], at_once: int = _AT_ONCE) -> AsyncIterator[T]:
    """Yield each thing; after every so many, other work runs. The things must not change."""
    for number, thing in enumerate(things, 1):
        yield thing
        if number % at_once == 0:
            await asyncio.sleep(0)
