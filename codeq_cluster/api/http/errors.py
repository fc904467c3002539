"""Errors: every refusal of the HTTP layer, as text, code and status."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.http.answer import encode
from codeq_cluster.auth import AccessRefused
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.errors import (
    ArtifactStoreFailed,
    CodeqError,
    LimitExceeded,
    MethodUnknown,
    NoLeader,
    NotLeader,
    OperationTooLarge,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
    TooMany,
    UpgradeUnderWay,
)

S = TypeVar("S")
T = TypeVar("T")

# A detail may quote the request, which may be long.
DETAIL_CHARS_MAX = 200


class ApiError(Exception):
    """An error answer.

    Many are constants, and each raise adds the frames of a request to the constant's traceback.
    Code that catches one and does not raise it again must call `with_traceback(None)`; otherwise
    every refused request stays in memory.

    Attributes:
        text: The reference's words where it has them: its clients compare them.
        code: A stable code of this project.
        retryable: The same request may succeed later.
        headers: Beside the usual headers.
        extra: Fields of the envelope beside the usual fields.
    """

    def __init__(
        self,
        status: int,
        text: str,
        code: str,
        *,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.code = code
        self.retryable = retryable
        self.headers = headers or {}
        self.extra = extra or {}

    def saying(self, text: str) -> ApiError:
        """Return the same error with another text."""
        return self._with(text, self.extra)

    def because(self, detail: str) -> ApiError:
        """Return the same error with its cause, cut to `DETAIL_CHARS_MAX`."""
        return self._with(self.text, {**self.extra, "detail": detail[:DETAIL_CHARS_MAX]})

    def one_of(self, field: str, words: Iterable[str]) -> ApiError:
        """Return the same error about a field that must be one of these words."""
        return self.about(field).because(f"{field}: use {', '.join(words)}")

    def about(self, field: str) -> ApiError:
        """Return the same error with the field of the body that it is about."""
        return self._with(self.text, {**self.extra, "field": field})

    def within(self, part: str) -> ApiError:
        """Return the same error about what it says of a part of the body, such as `tasks[3]`.

        The error itself keeps no traceback, so it may be a constant that the caller has caught.
        """
        self.with_traceback(None)
        inner = self.extra.get("field")
        named = self.about(f"{part}.{inner}" if inner else part)
        return named.because(f"{part}: {self.extra.get('detail', self.text)}")

    def as_item(self) -> dict[str, Any]:
        """Return what an item of a batch says of this error."""
        said = {"error": self.text, "code": self.code, "retryable": self.retryable}
        detail = self.extra.get("detail")
        return said if detail is None else {**said, "detail": detail}

    def _with(self, text: str, extra: Mapping[str, Any]) -> ApiError:
        return ApiError(
            self.status,
            text,
            self.code,
            retryable=self.retryable,
            headers=self.headers,
            extra=extra,
        )


class Envelope(Struct):
    """The body of every error: `code` is stable, `retryable` says whether to send it again.

    An exceeded limit is named by `scope` and `operation`; a field of a topic or of a schedule, and
    one of several tasks, such as `tasks[3]`, by `field`; the task that holds a unique key by
    `taskId`. `detail` is for people: what is wrong in the request, or what is full, where `error`
    does not say.
    """

    error: str
    code: str
    retryable: bool
    request_id: str = msgspec.field(name="requestId")
    scope: str | UnsetType = UNSET
    operation: str | UnsetType = UNSET
    retry_after_seconds: int | UnsetType = msgspec.field(default=UNSET, name="retryAfterSeconds")
    field: str | UnsetType = UNSET
    task_id: str | UnsetType = msgspec.field(default=UNSET, name="taskId")
    detail: str | UnsetType = UNSET


def envelope(error: ApiError, request_id: str) -> bytes:
    """Render the body of an error answer."""
    return encode(Envelope(error.text, error.code, error.retryable, request_id, **error.extra))


def each_of(name: str, items: Iterable[S], read: Callable[[S], T]) -> Iterator[T]:
    """Yield what is read of each item of a list of the body; an ApiError says of which it is."""
    for place, item in enumerate(items):
        try:
            yield read(item)
        except ApiError as error:
            raise error.within(f"{name}[{place}]") from None


def bad_request(text: str, code: str) -> ApiError:
    """Return a 400."""
    return ApiError(400, text, code)


def not_applied(
    status: int,
    text: str,
    code: str,
    *,
    retry_after_s: int = 1,
    extra: Mapping[str, Any] | None = None,
) -> ApiError:
    """Return the error for a request that may be sent again, since nothing of it was done."""
    headers = {"Retry-After": str(retry_after_s), "X-Outcome": "not-applied"}
    return ApiError(status, text, code, retryable=True, headers=headers, extra=extra)


def invalid_body(text: str = "invalid body") -> ApiError:
    """Return the 400 for a body that the route cannot read."""
    return ApiError(400, text, "invalid-body")


def not_utf8(text: str) -> ApiError:
    """Return the 400 for a body that is no text."""
    return invalid_body(text).because("is not UTF-8; it must not be compressed either")


def from_access(refused: AccessRefused) -> ApiError:
    """Return the answer to a refused caller."""
    code = {401: "unauthorized", 403: "forbidden"}[refused.status]
    headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
    return ApiError(refused.status, refused.text, code, headers=headers)


def from_failure(failure: CodeqError) -> ApiError:
    """Return the answer for an operating error: mostly 503, with what is known of the outcome."""
    match failure:
        case OutcomeUnknown():
            return ApiError(503, "outcome unknown", "outcome-unknown", retryable=True)
        case NoLeader() | NotLeader() | PeerUnreachable():
            return _leaderless(str(failure) if isinstance(failure, NoLeader) else "")
        case MethodUnknown():
            text = "the node that leads runs an earlier release, which does not know this"
            return not_applied(503, text, "upgrade-under-way")
        case UpgradeUnderWay():
            advice = "run codeq-cluster cluster upgrade once every node has this release"
            return not_applied(503, f"{failure}: {advice}", "upgrade-under-way")
        case Overloaded():
            busy = not_applied(503, "overloaded", "overloaded", retry_after_s=failure.retry_after_s)
            return busy.because(str(failure))
        case LimitExceeded():
            return not_applied(
                429,
                failure.text,
                failure.code,
                retry_after_s=failure.retry_after_s,
                extra={
                    "scope": failure.scope,
                    "operation": failure.operation,
                    "retry_after_seconds": failure.retry_after_s,
                },
            )
        case ArtifactStoreFailed():
            text = "artifacts cannot be stored or read now"
            return not_applied(503, text, "artifact-store-failed")
        case TooMany():
            return ApiError(409, failure.text, "too-many")
        case OperationTooLarge():
            return ApiError(413, "request body too large", "body-too-large")
        case _:
            # A broken link or a failed disk leaves the outcome unknown.
            return ApiError(503, "outcome unknown", "outcome-unknown", retryable=True)


def _leaderless(why: str) -> ApiError:
    error = not_applied(503, "no leader for shard", "no-leader")
    return error.because(why) if why else error


def auth_unavailable() -> ApiError:
    """Return the 503 for a token that cannot be checked now."""
    return not_applied(503, "authentication unavailable", "auth-unavailable")


_STATUS_OF_REJECTION = {
    Rejection.NOT_FOUND: 404,
    Rejection.NOT_OWNER: 403,
    Rejection.NOT_IN_PROGRESS: 409,
    Rejection.LEASE_LOST: 409,
    Rejection.IDEMPOTENCY_CONFLICT: 409,
    Rejection.ALREADY_TERMINAL: 409,
    Rejection.BUDGET_EXCEEDED: 429,
    Rejection.TOO_MANY: 409,
    Rejection.INVALID_PRIORITY: 400,
    Rejection.INVALID_COST: 422,
    Rejection.STALE_REVISION: 409,
    Rejection.OTHER_OWNER: 409,
    Rejection.BACKFILL_RUNNING: 409,
    Rejection.GROUP_SEALED: 409,
    Rejection.OTHER_GROUP: 409,
    Rejection.UNKNOWN_DEPENDENCY: 404,
    Rejection.UNIQUE_CONFLICT: 409,
    Rejection.TOO_MANY_MERGES: 409,
    Rejection.STEP_CONFLICT: 409,
    Rejection.NOTHING_TO_HOLD: 409,
    Rejection.EVENT_TYPE_NOT_ALLOWED: 403,
    Rejection.CANCELLING: 409,
    Rejection.TOO_MANY_TAGS: 409,
    Rejection.KEYS_ELSEWHERE: 409,
    Rejection.UNKNOWN_LIMIT: 422,
    Rejection.LIMIT_IN_USE: 409,
    Rejection.PINNED_ELSEWHERE: 409,
    Rejection.MISPLACED: 503,  # The broker places such a task again; nobody is answered this.
}

_TEXT_OF_REJECTION = {
    Rejection.IDEMPOTENCY_CONFLICT: "idempotency conflict",
    Rejection.EVENT_TYPE_NOT_ALLOWED: "event type not allowed",
    Rejection.KEYS_ELSEWHERE: (
        "the queue had 'flow.perKey' alone, so its keys are on many shards: use another queue, or "
        "end the rule first; the keys of tasks that are there then do not count with new ones"
    ),
    Rejection.GROUP_SEALED: (
        "the group is sealed: only results of its live members add tasks, by their 'next'"
    ),
    Rejection.OTHER_GROUP: (
        "'next' may name the group of the task that ends, and no other: leave 'group' out"
    ),
    Rejection.CANCELLING: "the task is to be cancelled, so it cannot wait; give it back",
}

# What is said of `Rejected.limit`.
_TEXT_ABOUT = {
    Rejection.UNKNOWN_DEPENDENCY: "unknown dependency: {}",
    # The body may have no priority: say that this means 0.
    Rejection.INVALID_PRIORITY: (
        "invalid 'priority' (must be one of {}, the priorityTiers of its topic; 0 when absent)"
    ),
    Rejection.TOO_MANY_MERGES: ("{} idempotency keys lead to the task that holds the unique key"),
    Rejection.TOO_MANY_TAGS: "a task has at most {} tags: remove others with it",
    Rejection.INVALID_COST: "invalid 'cost' (must be at most {}, the burst of its topic's rate)",
    Rejection.UNKNOWN_LIMIT: "flow.limit: limit '{}' does not exist; create it before you name it",
    Rejection.LIMIT_IN_USE: ("topics name the limit, so take it out of their 'flow' first: {}"),
    Rejection.PINNED_ELSEWHERE: (
        "the queue is on the shard of {}, where its first limit has placed it for good, and this "
        "limit is on another shard: use another queue, or another limit"
    ),
}

_NOTHING_TO_HOLD = {
    "key": "nothing to hold: the task has no 'key', or its topic no 'flow.perKey'",
    "queue": (
        "nothing to hold: only a queue with a limit of its own is on one shard; set "
        "'flow.maxRunning' or 'flow.rate' of its topic, which count for tasks created after it"
    ),
    "limit": (
        "nothing to hold: the task's queue shares no limit; name one as 'flow.limit' of its "
        "topic, which counts for tasks created after it"
    ),
}


def from_rejection(rejected: Rejected, *, not_found: str = "not-found") -> ApiError:
    """Return the answer for the broker's refusal; `not_found` is the route's text for a 404."""
    rejection = rejected.rejection
    text = _TEXT_OF_REJECTION.get(rejection, rejection.value)
    if rejection is Rejection.UNIQUE_CONFLICT:
        return _unique_conflict(rejected)
    if rejection is Rejection.NOT_FOUND:
        text = not_found
    elif rejection is Rejection.NOTHING_TO_HOLD:
        text = _NOTHING_TO_HOLD[rejected.limit or "key"]
    elif rejection is Rejection.KEYS_ELSEWHERE and rejected.limit:
        text = (
            "the dead letter is from before the limit of its queue, whose unique keys are decided "
            "on another shard now: create the task again, and delete this one"
        )
    elif rejection in _TEXT_ABOUT:
        text = _TEXT_ABOUT[rejection].format(rejected.limit)
    return ApiError(_STATUS_OF_REJECTION[rejection], text, rejection.value)


def _unique_conflict(rejected: Rejected) -> ApiError:
    """Return the 409 that names who holds a unique key."""
    text, code = "the unique key is held", rejected.rejection.value
    task_id, _, rest = rejected.limit.partition(" ")
    if not task_id:
        return ApiError(409, text, code)  # Another dead letter of the same request has got it.
    state, _, age_ms = rest.partition(" ")
    text = f"{text} by task {task_id} ({state}, created {int(age_ms) // 1000} s ago)"
    return ApiError(409, text, code, extra={"task_id": task_id})
