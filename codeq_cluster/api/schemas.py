"""Schemas: request bodies as typed values, tolerant of what the reference's decoder tolerates.

Field names match in any case, unknown fields are ignored, null is the same as absent, and the
last of duplicated fields wins. Payloads and results stay the text that was sent.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from codeq_cluster.api.errors import ApiError, invalid_body

_INT64_MAX = 2**63 - 1

# Absent and null are the same; a union with None would make the decoder look into the text.
_NULL = Raw(b"null")

_STRINGS = re.compile(r'"(?:[^"\\]+|\\.)*"')
_NO_BRACKET = re.compile(r"[^\[\]{}]+")
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


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


B = TypeVar("B", bound=Struct)


class Schema(Generic[B]):
    """Decodes one kind of body.

    Exact field names take one pass. Anything the struct does not name takes a second one that
    drops what is unknown and folds case.
    """

    def __init__(self, body: type[B]) -> None:
        self._exact = msgspec.json.Decoder(body)
        self._fields = {
            field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(body)
        }

    def decode(self, text: str | Raw, *, error: str) -> B:
        """Read a body.

        Args:
            text: Of valid UTF-8.
            error: What the route calls a body it cannot read.

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

    def _folded(self, text: str | Raw) -> bytes:
        given = _objects.decode(text)
        known = {}
        for name, value in given.items():
            exact = self._fields.get(name.lower())
            if exact is not None:
                known[exact] = value
        return msgspec.json.encode(known)


_objects = msgspec.json.Decoder(dict[str, Raw])

TASK = Schema(TaskBody)
TASKS = Schema(TasksBody)
CLAIM = Schema(ClaimBody)
LEASE = Schema(LeaseBody)
ARTIFACT = Schema(ArtifactBody)
RESULT = Schema(ResultBody)
RESULTS = Schema(ResultsBody)


def json_text(value: Raw, *, depth_max: int, error: str) -> str:
    """Return the JSON text of a field as it was sent, empty when it is absent or null.

    Raises:
        ApiError: 400 when it nests deeper than `depth_max`.
    """
    text = bytes(value).decode()
    if text == "null":
        return ""
    # Counting brackets is a memchr; only a text with many of them is looked at closely.
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


def depth(text: str) -> int:
    """Return how deep brackets nest in a JSON text, strings not looked into."""
    brackets = _NO_BRACKET.sub("", _STRINGS.sub("", text))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)
