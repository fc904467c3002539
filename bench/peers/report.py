"""Report: the measurements of all compared systems, and their medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.job import Sample
from bench.peers.failover import Failover


class Round(msgspec.Struct, kw_only=True):
    """The measurements of one system from one start to its stop.

    Attributes:
        first_create_s: From the start of the processes to the first acknowledged create.
        samples: One sample for each load, by name.
        rss_idle_mib: Mean resident memory of a node before the loads.
        rss_loaded_mib: Mean resident memory of a node after the loads.
        failover: None if no kill was requested.
    """

    first_create_s: float
    rss_idle_mib: float
    rss_loaded_mib: float = 0.0
    samples: dict[str, Sample] = {}
    failover: Failover | None = None


class System(msgspec.Struct, kw_only=True):
    """A system and its rounds.

    Attributes:
        syncs: In words, the state of its disk when it acknowledges a task.
        syncs_a_cycle: Syncs on all nodes for one cycle without other load; None if not counted.
    """

    name: str
    syncs: str
    batch: int
    syncs_a_cycle: float | None = None
    rounds: list[Round] = []


class Report(msgspec.Struct, kw_only=True):
    """A run."""

    machine: dict[str, Any]
    command: str
    when: str
    systems: list[System]


class Spread(msgspec.Struct, frozen=True):
    """Minimum, median and maximum of a figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value."""
        return cls(statistics.median(values), min(values), max(values))


def spread(system: System, load: str, figure: Callable[[Sample], float]) -> Spread | None:
    """Return the spread of a load's figure over the rounds, None if it was not measured."""
    values = [figure(one.samples[load]) for one in system.rounds if load in one.samples]
    return Spread.of(values) if values else None
