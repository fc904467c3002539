"""Portions: long loops that let other work on the event loop have its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

_AT_ONCE: Final = 500  # At a few microseconds each, one or two milliseconds.

T = TypeVar("T")


async def in_portions(things: Iterable[T]) -> AsyncIterator[T]:
    """Yield each thing; after every few hundred, other work runs. The things must not change."""
    for number, thing in enumerate(things, 1):
        yield thing
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
