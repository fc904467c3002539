"""Handling: how long a task may be handled and how it backs off, said by a task or its topic.

A task's own word comes before its topic's, and that before the broker's setting, each field on its
own. The broker keeps and shows the time limit, and workers enforce it.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Struct

from codeq_cluster.core.backoff import POLICIES

_YEAR_S = 366 * 86_400

# By the field's name on the wire: the least and the greatest value.
BOUNDS = {
    "timeoutSeconds": (1, _YEAR_S),
    "backoffBaseSeconds": (1, _YEAR_S),
    "backoffMaxSeconds": (1, _YEAR_S),
}


class Handling(Struct, frozen=True, array_like=True, kw_only=True):
    """What a task or a topic says; 0 or empty says nothing.

    Attributes:
        timeout_ms: How long one delivery may take; a topic's is the default and upper bound of its
            new tasks'.
        backoff: A key of `backoff.POLICIES`.
        backoff_base_ms: The base delay of the policy.
        backoff_max_ms: Upper bound of the delay that the policy gives.
    """

    timeout_ms: int = 0
    backoff: str = ""
    backoff_base_ms: int = 0
    backoff_max_ms: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether a broker could have taken every value."""
        numbers = (self.timeout_ms, self.backoff_base_ms, self.backoff_max_ms)
        in_bounds = all(
            0 <= number <= most * 1000
            for number, (_, most) in zip(numbers, BOUNDS.values(), strict=True)
        )
        return in_bounds and (not self.backoff or self.backoff in POLICIES)


def _sound_or_none(value: object) -> str:
    assert value is None or isinstance(value, Handling)
    fits = value is None or value.is_sound
    return "" if fits else "must be a time limit and a back-off within their bounds"


HandlingOrNone: TypeAlias = Annotated[Handling | None, _sound_or_none]
NOTHING_SAID = Handling()


def or_none(handling: Handling) -> Handling | None:
    """Return it, or None if it says nothing, so that it costs a record one byte."""
    return None if handling == NOTHING_SAID else handling


def of_new_task(own: Handling | None, topics: Handling | None) -> Handling | None:
    """Return a new task's handling: its own words, and a time limit within its topic's."""
    most = topics.timeout_ms if topics is not None else 0
    if not most:
        return own
    own = own or NOTHING_SAID
    return Handling(
        timeout_ms=min(own.timeout_ms, most) or most,
        backoff=own.backoff,
        backoff_base_ms=own.backoff_base_ms,
        backoff_max_ms=own.backoff_max_ms,
    )
