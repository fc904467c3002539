"""Keys: the rule that the tasks of a key follow in every run whose tasks have keys."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class KeyLimits(Struct, frozen=True, kw_only=True):
    """What limits the tasks of one key.

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
_OF_TOPIC = KeyLimits(running=1, per_second=PER_SECOND, burst=BURST)
# One key has wider limits of its own, and one has a stricter rate.
OWN: Mapping[str, KeyLimits] = {
    "key 0": KeyLimits(running=2, per_second=4, burst=4),
    "key 1": KeyLimits(running=1, per_second=1, burst=1),
}


def limits_of(key: str) -> KeyLimits:
    """Return what limits a key."""
    return OWN.get(key, _OF_TOPIC)


def key_name(n: int) -> str:
    """Return the name of the n-th key of a run."""
    return f"key {n}"
