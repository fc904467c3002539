"""Contenders: clusters of three processes that do the same work, started each in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from bench.checkout import Checkout
from bench.original import Original


class Contender(Protocol):
    """A cluster that can be started, loaded and stopped.

    Attributes:
        name: For tables.
        protocol: How its clients speak, as `bench.generator` names it.
        batch_max: Tasks a batch may carry.
        syncs: What it has on disk when it acknowledges, in words.
    """

    name: str
    protocol: str
    batch_max: int
    producer_token: str
    worker_token: str
    syncs: str

    @property
    def urls(self) -> list[str]:
        """Where the load goes."""

    @property
    def addresses(self) -> list[str]:
        """Of every node that lives."""

    @property
    def pids(self) -> list[int]:
        """Processes of the nodes."""

    def start(self) -> None:
        """Start, and return when it serves.

        Raises:
            RuntimeError: It does not; the text has the ends of the logs.
        """

    def stop(self) -> None:
        """End every process; harmless when none runs."""

    def leader(self, queue: str) -> str:
        """Return the address of the node that leads a queue, or a part of it."""

    def kill(self, address: str) -> None:
        """End a node with SIGKILL."""


def contender(spec: str, directory: Path, *, nice: int) -> Contender:
    """Return the contender that a word names: PATH or PATH:SHARDS.

    Args:
        spec: A checkout with its own `.venv`, or the server binary of the original; 4 shards
            where none are named.
        directory: For its data and logs; may not exist yet.
        nice: Priority of its processes.

    Raises:
        ValueError: There is no such thing.
    """
    path, _, shards_named = spec.partition(":")
    place, shards = Path(path).resolve(), int(shards_named or 4)
    if place.is_dir():
        return Checkout(place, directory, shards=shards, nice=nice)
    if place.is_file():
        return Original(place, directory, shards=shards, nice=nice)
    raise ValueError(f"{spec}: neither a checkout nor the original's server binary")
