"""Uniques: `unique` in the body of a task, and the refusals of unique keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Raw

from codeq_cluster.api.declared.bodies import Body, Schema, chosen, field
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_rejection
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.routes.task_views import TaskView
from codeq_cluster.codec.levels import UNIQUE_FROM
from codeq_cluster.core.merging import MERGES_MAX
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.task import LANE_KEY_BYTES_MAX, Until
from codeq_cluster.core.unique import MAX_WAITS, WAIT_S_MAX, On, UniqueTerms

INVALID = bad_request("invalid 'unique'", "invalid-unique")
TOO_EARLY = TooEarly(UNIQUE_FROM, "'unique' needs")
CONFLICT = from_rejection(
    Rejected(Rejection.UNIQUE_CONFLICT, "0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60 LEASED 12000")
)
DECIDED_ELSEWHERE = from_rejection(
    Rejected(Rejection.KEYS_ELSEWHERE, "0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60")
)
TOO_MANY = from_rejection(Rejected(Rejection.TOO_MANY_MERGES, str(MERGES_MAX)))
_ALONE = INVALID.because(
    "only for a task that is created by itself or in a batch, without group and dependsOn"
)
_REJECTED = "rejected"
NO_UNIQUE = Raw(b"null")


def _unknown(name: str, known: Sequence[str]) -> ApiError:
    return INVALID.because(f"unknown field {name[:64]}, use {', '.join(known)}")


def _seconds(name: str, text: str) -> Any:
    most = INVALID.because(f"{name}: use 1 to {WAIT_S_MAX}")
    return field(text, ge=1, le=WAIT_S_MAX, refused=(most,))


class UniqueBody(Body):
    """A key that at most one task of the queue holds."""

    key: str | None = field(
        f"One to {LANE_KEY_BYTES_MAX} bytes. It counts among the tasks of the queue, and of these "
        "among those with the same `key`, if the task has one.",
        required=True,
    )
    on: str | None = field(
        "What the create does while the key is held: `return` the task that holds it, the "
        "default; `reject` with 409; `replace` its payload, priority, start and time to live "
        "while it waits, and return it while a worker has it; or `keepLast`: as `replace`, but "
        "while a worker has it, one more task waits, and later creates replace that one.",
        enum=[*On, None],
    )
    until: str | None = field(
        "When a task lets go of the key: when it has `ended`, the default, or when it is "
        "`claimed`. A dead letter always lets go; retries do not.",
        enum=["ended", "claimed", None],
    )
    throttle_seconds: int | None = _seconds(
        "throttleSeconds",
        "How long a task holds the key, from the create on, whatever becomes of it; with `until`, "
        "at most.",
    )
    debounce_seconds: int | None = _seconds(
        "debounceSeconds",
        "The start: so long after the create. Each later create that meets the task waiting moves "
        "it, whatever its `on`. Not with `reject`, and not with another start.",
    )
    max_wait_seconds: int | None = _seconds(
        "maxWaitSeconds",
        "The latest start of a debounced task, from its first create on; "
        f"{MAX_WAITS} times `debounceSeconds` when absent.",
    )


UNIQUE = Schema(UniqueBody, refusal=INVALID.text, unknown=_unknown)


def unique_field() -> Any:
    """Declare what a task says of its unique key."""
    return field(
        "A key that at most one task holds; the answer's `unique` says what the create did: "
        "`created`, `returned`, `replaced` or `queued`. Only for a task that is created by itself "
        "or in a batch, without `group` and `dependsOn`.",
        default=NO_UNIQUE,
        inner=UNIQUE,
        refused=(INVALID, TOO_EARLY, CONFLICT, TOO_MANY),
    )


def read_unique(call: Call, item: Raw, *, is_alone: bool, has_start: bool) -> UniqueTerms | None:
    """Return what a new task says of its unique key.

    Args:
        is_alone: It may have one.
        has_start: It says itself when it starts.

    Raises:
        ApiError: It is refused.
    """
    if bytes(item) == b"null":
        return None
    if not is_alone:
        raise _ALONE
    body = UNIQUE.decode(item)
    if not body.key or len(body.key.encode()) > LANE_KEY_BYTES_MAX:
        raise INVALID.because(f"key must have 1 to {LANE_KEY_BYTES_MAX} bytes")
    on = chosen(On, "on", body.on, _none_of) or On.RETURN
    throttle_s, debounce_s = body.throttle_seconds or 0, body.debounce_seconds or 0
    until = chosen(Until, "until", body.until, _no_until)
    if until is Until.THROTTLE:
        raise _no_until("until")
    max_wait_s = body.max_wait_seconds or min(MAX_WAITS * debounce_s, WAIT_S_MAX)
    if max_wait_s < debounce_s or (max_wait_s and not debounce_s):
        raise INVALID.because("maxWaitSeconds must be at least debounceSeconds, and come with it")
    if debounce_s and (has_start or on is On.REJECT):
        raise INVALID.because("debounceSeconds excludes reject, and another start of the task")
    TOO_EARLY.check(call)
    return UniqueTerms(
        key=body.key,
        on=on,
        until=until or (Until.THROTTLE if throttle_s else Until.ENDED),
        throttle_ms=throttle_s * 1000,
        debounce_ms=debounce_s * 1000,
        max_wait_ms=max_wait_s * 1000,
    )


def shown(call: Call, view: TaskView, how: str) -> TaskView:
    """Count what a create with a unique key has done, and write it into its answer."""
    call.services.telemetry.metrics.unique_creates.inc(how)
    view.unique = how
    return view


def refused_create(call: Call, rejected: Rejected) -> ApiError:
    """Return the answer to a refusal of a create; count it if its unique key is held."""
    if rejected.rejection is Rejection.UNIQUE_CONFLICT:
        call.services.telemetry.metrics.unique_creates.inc(_REJECTED)
    return from_rejection(rejected)


def _no_until(name: str, _words: Iterable[str] = ()) -> ApiError:
    return _none_of(name, (Until.ENDED, Until.CLAIMED))  # `throttleSeconds` says the other.


def _none_of(name: str, words: Iterable[str]) -> ApiError:
    return INVALID.because(f"{name} must be one of {', '.join(words)}")
