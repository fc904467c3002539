"""Keys: what the tasks of a key, a queue or a limit follow in every run that has such tasks."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """What limits the tasks of one key or of one queue.

    Attributes:
        running: In progress at once.
        per_second: Claims.
        burst: How many claims a pause saves up.
    """

    running: int
    per_second: int
    burst: int


# The clients ask for about as many claims, so the rate binds often, above all after a fault.
PER_SECOND = 2
BURST = 2
_OF_TOPIC = Limits(running=1, per_second=PER_SECOND, burst=BURST)
# One key has wider limits of its own, and one has a stricter rate.
OWN: Mapping[str, Limits] = {
    "key 0": Limits(running=2, per_second=4, burst=4),
    "key 1": Limits(running=1, per_second=1, burst=1),
}


# By its command, what limits all tasks of a queue, or of the queues that share a limit.
OF_QUEUE: Mapping[str, Limits] = {
    "limited": Limits(running=2, per_second=4, burst=3),
    "charge": Limits(running=2, per_second=4, burst=3),
}
# The queues that share a limit, by the command of the first.
SHARERS: Mapping[str, tuple[str, ...]] = {"charge": ("charge", "refund")}
LIMIT = "api"  # Its name.


def limits_of(key: str) -> Limits:
    """Return what limits a key."""
    return OWN.get(key, _OF_TOPIC)


def slowest() -> Limits:
    """Return what limits the key whose tasks take longest."""
    return min((_OF_TOPIC, *OWN.values()), key=lambda each: each.per_second)


def is_limited(*, key: str, command: str) -> bool:
    """Return whether a task may have to wait although a worker asks for it."""
    return bool(key) or any(command in limited_with(each) for each in OF_QUEUE)


def limited_with(command: str) -> tuple[str, ...]:
    """Return the queues whose tasks count with those of a queue, itself among them."""
    return SHARERS.get(command, (command,))


def hold_of(command: str) -> str:
    """Return what a worker of a workload holds: a key, its queue, or the limit that this shares."""
    if command in SHARERS:
        return "limit"
    return "queue" if command in OF_QUEUE else "key"


def key_name(n: int) -> str:
    """Return the name of the n-th key of a run."""
    return f"key {n}"
