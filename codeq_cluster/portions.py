"""Portions: long loops let other work have its turn, and much is sent in parts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
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


def in_parts(
    things: Iterable[T],
    size_of: Callable[[T], int] = lambda _: 0,
    *,
    size_max: int = sys.maxsize,
    count_max: int = sys.maxsize,
) -> Iterator[tuple[T, ...]]:
    """Yield things in order, in parts within these bounds; one above them is a part by itself."""
    part: list[T] = []
    size = 0
    for thing in things:
        more = size_of(thing)
        if part and (len(part) >= count_max or size + more > size_max):
            yield tuple(part)
            part, size = [], 0
        part.append(thing)
        size += more
    if part:
        yield tuple(part)
