"""Loops: the parts that work through things of many tenants, and go on when they fail at one."""

from __future__ import annotations

from enum import StrEnum


class Loop(StrEnum):
    """The name of a loop in metrics; docs/loops.md says what each does with what it fails at."""

    TIMERS = "timers"
    BULK = "bulk"
    OUTBOX = "outbox"
    RELAYS = "relays"
    SCHEDULES = "schedules"
    CATALOGUE = "catalogue"
    LISTENERS = "listeners"
    CLAIMS = "claims"
    LISTS = "lists"
    SCRAPE = "scrape"
    COUNTERS = "counters"
