"""Levels: what needs later formats is refused until every shard uses them."""

from __future__ import annotations

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, from_failure
from codeq_cluster.errors import UpgradeUnderWay


class TooEarly(ApiError):
    """The refusal of what needs formats of a level.

    Args:
        level: Of these formats.
        needs: The text up to them, such as "a limit needs".
    """

    def __init__(self, level: int, needs: str) -> None:
        text = f"{needs} formats of level {level} on every shard"
        known = from_failure(UpgradeUnderWay(text))
        super().__init__(
            known.status, known.text, known.code, retryable=known.retryable, headers=known.headers
        )
        self._level = level

    def check(self, call: Call) -> None:
        """Refuse what a node of an earlier release, elected next, would not know."""
        if call.services.broker.level() < self._level:
            raise self
