"""Requests: request bodies as typed values, tolerant of what the reference's decoder tolerates.

Field names match in any case, unknown fields are ignored, null is the same as absent, and the
last of duplicated fields wins. Payloads and results stay the text that was sent.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import accumulate
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from codeq_cluster.api.http.errors import ApiError, invalid_body

_INT64_MAX = 2**63 - 1

# Absent and null mean the same. A union with None would make the decoder inspect the text.
_NULL = Raw(b"null")

_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEP = {ord("["): 1, ord("]"): -1}


class TaskBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A task to create."""

    command: str | None = None
    payload: Raw = _NULL
    priority: int | None = None
    webhook: str | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None
    run_at: str | None = None
    delay_seconds: int | None = None
    ttl_seconds: int | None = None


class TasksBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Tasks to create; each item is decoded on its own."""

    tasks: list[Raw] | None = None


class ClaimBody(Struct, rename="camel", forbid_unknown_fields=True):
    """What a worker wants; `count` matters to the batch route alone."""

    commands: list[str] | None = None
    lease_seconds: int | None = None
    wait_seconds: int | None = None
    count: int | None = None


class LeaseBody(Struct, rename="camel", forbid_unknown_fields=True):
    """What a worker says of a lease: heartbeat, abandon and nack together."""

    extend_seconds: int | None = None
    delay_seconds: int | None = None
    reason: str | None = None
    lease_token: int | None = None


class ArtifactBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A product of a task."""

    name: str | None = None
    url: str | None = None
    content_base64: Raw = msgspec.field(name="contentBase64", default=_NULL)
    content_type: str | None = None


class ResultBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A result; `task_id` matters to the batch route alone."""

    status: str | None = None
    result: Raw = _NULL
    error: str | None = None
    artifacts: list[Raw] | None = None
    lease_token: int | None = None
    task_id: str | None = None


class ResultsBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Results; each item is decoded on its own."""

    results: list[Raw] | None = None


class SelectionBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which dead letters are meant, and whether they are only to be counted."""

    ids: list[str] | None = None
    error: str | None = None
    limit: int | None = None
    dry_run: bool | None = None


class CleanupBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which finished tasks are to be deleted."""

    limit: int | None = None
    before: str | None = None


class TopicBody(Struct, rename="camel", forbid_unknown_fields=True):
    """What governs a queue; what is absent is the broker's to decide."""

    priority_tiers: list[int] | None = None
    max_attempts: int | None = None
    dead_letter_topic_ref: str | None = None
    retention_seconds: int | None = None
    max_consumers: int | None = None
    weight: int | None = None


class ReplayBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which dead deliveries are to be tried again."""

    ids: list[str] | None = None
    all: bool | None = None


class TransferBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which shard's leadership is to go where."""

    shard: int | None = None
    to: str | None = None


class JoinBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which node may come in, and where it is reached."""

    node_id: str | None = None
    addr: str | None = None
    http_addr: str | None = None
    dry_run: bool | None = None


class UpgradeBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which formats are to be used from now on."""

    level: int | None = None
    dry_run: bool | None = None


class RemoveBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which node is to go for good."""

    node_id: str | None = None
    dry_run: bool | None = None


class SubscriptionBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Who wants to hear when queues become non-empty."""

    callback_url: str | None = None
    event_types: list[str] | None = None
    ttl_seconds: int | None = None
    delivery_mode: str | None = None
    group_id: str | None = None
    min_interval_seconds: int | None = None


class RenewalBody(Struct, rename="camel", forbid_unknown_fields=True):
    """For how long a subscription is to live on."""

    ttl_seconds: int | None = None


B = TypeVar("B", bound=Struct)


class Schema(Generic[B]):
    """Decodes one kind of body.

    A body with exact field names takes one pass. Otherwise a second pass drops unknown fields and
    folds case.
    """

    def __init__(self, body: type[B]) -> None:
        self._body = body
        self._exact = msgspec.json.Decoder(body)
        self._fields = {
            field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(body)
        }

    def decode(self, text: str | Raw, *, error: str) -> B:
        """Read a body.

        Args:
            text: The body, valid UTF-8.
            error: The route's name for a body it cannot read.

        Raises:
            ApiError: 400, with that text.
        """
        try:
            return self._exact.decode(text)
        except msgspec.ValidationError:
            pass
        except (msgspec.DecodeError, RecursionError, UnicodeError) as unreadable:
            raise invalid_body(error) from unreadable
        try:
            return self._exact.decode(self._folded(text))
        except (msgspec.DecodeError, RecursionError) as unreadable:
            raise invalid_body(error) from unreadable

    def decode_any(self, text: str, *, error: str) -> B:
        """Read a body that may be missing or null, which count as empty; raises as `decode`."""
        text = text.strip()
        return self._body() if text in _EMPTY else self.decode(text, error=error)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the field names as they are sent."""
        return tuple(self._fields.values())

    def unknown(self, text: str) -> str | None:
        """Return the first field that the body does not name, or None.

        Args:
            text: The same text as for `decode_any`.
        """
        text = text.strip()
        names = {} if text in _EMPTY else _objects.decode(text)
        return next((name for name in names if name.lower() not in self._fields), None)

    def _folded(self, text: str | Raw) -> bytes:
        given = _objects.decode(text)
        known = {}
        for name, value in given.items():
            exact = self._fields.get(name.lower())
            if exact is not None:
                known[exact] = value
        return msgspec.json.encode(known)


_EMPTY = ("", "null")
_objects = msgspec.json.Decoder(dict[str, Raw])

TASK = Schema(TaskBody)
TASKS = Schema(TasksBody)
CLAIM = Schema(ClaimBody)
LEASE = Schema(LeaseBody)
ARTIFACT = Schema(ArtifactBody)
RESULT = Schema(ResultBody)
RESULTS = Schema(ResultsBody)
SELECTION = Schema(SelectionBody)
CLEANUP = Schema(CleanupBody)
TOPIC = Schema(TopicBody)
REPLAY = Schema(ReplayBody)
TRANSFER = Schema(TransferBody)
JOIN = Schema(JoinBody)
REMOVE = Schema(RemoveBody)
UPGRADE = Schema(UpgradeBody)
SUBSCRIPTION = Schema(SubscriptionBody)
RENEWAL = Schema(RenewalBody)


def json_text(value: Raw, *, depth_max: int, error: str) -> str:
    """Return the JSON text of a field as it was sent, empty when it is absent or null.

    Raises:
        ApiError: 400 when it nests deeper than `depth_max`.
    """
    text = bytes(value).decode()
    if text == "null":
        return ""
    # Counting brackets is a memchr; only a text with many brackets is parsed.
    if text.count("[") + text.count("{") > depth_max and depth(text) > depth_max:
        raise invalid_body(error)
    return text


def whole(value: int | None, *, error: ApiError) -> int:
    """Return an integer field, 0 when absent.

    Raises:
        ApiError: The given error, for a number beyond 64 bits.
    """
    if value is None:
        return 0
    if not -_INT64_MAX <= value <= _INT64_MAX:
        raise error
    return value


def instant_ms(text: str, *, error: ApiError) -> int:
    """Return an instant of RFC 3339 as Unix milliseconds.

    Raises:
        ApiError: The given error, for anything else.
    """
    try:
        instant = msgspec.convert(text, datetime)
        if instant.tzinfo is None or text[10] not in "Tt":
            raise error
        unix_s = instant.astimezone(UTC).timestamp()  # Raises beyond the years 1 to 9999.
    except (msgspec.ValidationError, OverflowError, ValueError) as malformed:
        raise error from malformed
    return round(unix_s * 1000)


def depth(text: str) -> int:
    """Return how deep brackets nest in a JSON text, ignoring strings.

    Whole texts are processed at once, because anybody may send a megabyte of brackets: about 5 ms
    for one, 40 ms in the worst case.
    """
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    outside = "".join(unescaped.split('"')[::2])
    brackets = outside.encode().translate(_ALIKE, _NO_BRACKETS)
    levels = 0
    # Removing the innermost pairs makes a text one level less deep; it pays while there are many.
    while 4 * len(left := brackets.replace(b"[]", b"")) < 3 * len(brackets):
        brackets = left
        levels += 1
    return levels + max(accumulate(map(_STEP.__getitem__, brackets)), default=0)
