"""Contenders: clusters of three processes that do the same work, each started in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from bench.checkout import Checkout
from bench.original import Original


class Contender(Protocol):
    """A cluster that can be started, loaded and stopped.

    Attributes:
        name: For tables.
        protocol: The protocol of its clients, as `bench.generator` names it.
        batch_max: Tasks that fit into one batch.
        syncs: In words, the state of its disk when it acknowledges a task.
    """

    name: str
    protocol: str
    batch_max: int
    producer_token: str
    worker_token: str
    syncs: str

    @property
    def urls(self) -> list[str]:
        """The addresses that the load is sent to."""

    @property
    def addresses(self) -> list[str]:
        """The addresses of all running nodes."""

    @property
    def pids(self) -> list[int]:
        """Processes of the nodes."""

    def start(self) -> None:
        """Start, and return once it serves requests.

        Raises:
            RuntimeError: It did not start; the text has the ends of the logs.
        """

    def stop(self) -> None:
        """Stop every process; safe to call again."""

    def leader(self, queue: str) -> str:
        """Return the address of the node that leads a queue or, of a sharded queue, one shard."""

    def kill(self, address: str) -> None:
        """Kill a node with SIGKILL."""


def contender(spec: str, directory: Path, *, nice: int) -> Contender:
    """Return the contender for PATH or PATH:SHARDS.

    Args:
        spec: A checkout with its own `.venv`, or the server binary of the original; 4 shards by
            default.
        directory: For its data and logs; need not exist yet.
        nice: Priority of its processes.

    Raises:
        ValueError: The path is neither of them.
    """
    path, _, shards_named = spec.partition(":")
    place, shards = Path(path).resolve(), int(shards_named or 4)
    if place.is_dir():
        return Checkout(place, directory, shards=shards, nice=nice)
    if place.is_file():
        return Original(place, directory, shards=shards, nice=nice)
    raise ValueError(f"{spec}: neither a checkout nor the original's server binary")
