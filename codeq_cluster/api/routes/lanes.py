"""Lanes: the key that a new task shares a limit with, and what it costs under a rate."""

from __future__ import annotations

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.codec.levels import KEYS_FROM
from codeq_cluster.core.task import COST_MAX, LANE_KEY_BYTES_MAX

INVALID_KEY = bad_request(f"invalid 'key' (at most {LANE_KEY_BYTES_MAX} bytes)", "invalid-key")
INVALID_COST = bad_request(f"invalid 'cost' (must be between 1 and {COST_MAX})", "invalid-cost")
KEYS_TOO_EARLY = TooEarly(KEYS_FROM, "'key' or 'cost' needs")


def read_lane(call: Call, key: str, cost: int | None) -> tuple[str, int]:
    """Return what a new task shares a limit with, and the tokens it costs.

    Raises:
        ApiError: One of these is refused.
    """
    if cost is None and not key:
        return "", 1
    if cost is not None and not 1 <= cost <= COST_MAX:
        raise INVALID_COST
    if len(key.encode()) > LANE_KEY_BYTES_MAX:
        raise INVALID_KEY
    KEYS_TOO_EARLY.check(call)
    return key, cost or 1
