"""Messages: one of Kombu's as a task of this broker, and back; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from kombu.utils import json
from msgspec import Raw, Struct

from codeq_cluster.client import NewTask, TaskRecord
from codeq_cluster.integrations.bodies import is_readable

# A message that came back a hundred times, by crashes or stops of workers, is a dead letter.
DELIVERIES_MAX: Final = 100
PRIORITY_MAX: Final = 9
DELAY_MAX: Final = timedelta(days=366)

# Identifies one publish, over its repetitions; never sent.
KEY: Final = "codeq_key"

# Stands for the id of a message that is sent more than once, by a schedule.
DRAWN: Final = "drawn-when-sent"

_NAME_CHARS_MAX: Final = 128
_FOREIGN: Final = re.compile(rb"[^A-Za-z0-9._-]")
_EMBEDDED: Final = "json"


class _Envelope(Struct, frozen=True, rename="kebab"):
    """A payload: the body as JSON that people can read, or as a text with its encoding.

    Headers that JSON cannot carry are a text of what Python writes, and properties the same way.
    """

    body: Raw
    headers: Raw
    properties: Raw
    content_type: str | None = None
    content_encoding: str | None = None


def command_of(queue: str) -> str:
    """Return the queue here for one of Kombu's; a character that is not allowed is `:` and its hex.

    Raises:
        ValueError: It has no name, or too long a one.
    """
    command = _FOREIGN.sub(lambda found: b":%02x" % ord(found[0]), queue.encode()).decode()
    if command in {"", ".", ".."} or len(command) > _NAME_CHARS_MAX:
        raise ValueError(
            f"queue {queue!r}: must have 1 to {_NAME_CHARS_MAX} characters; "
            "each outside of A-Za-z0-9._- counts as three for each of its bytes"
        )
    return command


def task_of(
    queue: str, message: Mapping[str, Any], *, now: datetime, deliveries_max: int
) -> NewTask:
    """Return the task that carries a message.

    A Celery task's `eta` is the earliest delivery. Its `expires` is left to the worker, which
    discards the task and stores its state REVOKED: if the message ended here, the task would have
    no result, and a `get` of it would wait for ever.

    Args:
        queue: Kombu's name of it.
        message: As Kombu's virtual channels have it, with `KEY` among its properties.
        now: With its zone.
        deliveries_max: After that many the message is a dead letter.

    Raises:
        ValueError: The queue's name is impossible.
    """
    headers, properties = message["headers"], message["properties"]
    eta = _instant(headers.get("eta"))
    # Celery says the time of its `expires` a second time, as `expiration`.
    ttl = _ttl(properties) if headers.get("expires") is None else None
    command = command_of(queue)
    return NewTask(
        command,
        Raw(payload_of(message)),
        priority=max(0, min(PRIORITY_MAX, int(properties.get("priority") or 0))),
        max_attempts=deliveries_max,
        # A worker holds what is left of a longer one; its lease is renewed.
        run_at=min(eta, now + DELAY_MAX) if eta is not None and eta > now else None,
        # One that is over already gets a second, because none would mean for ever.
        ttl=None if ttl is None else min(max(timedelta(seconds=1), ttl), DELAY_MAX),
        idempotency_key=f"kombu:{properties[KEY]}:{command}",
    )


def message_of(record: TaskRecord, *, tag: str) -> dict[str, Any]:
    """Return the message that a task carries.

    Raises:
        ValueError: Its payload is none of `task_of`.
    """
    try:
        envelope = msgspec.json.decode(record.payload, type=_Envelope)
        properties = _read(envelope.properties)
        headers = _read(envelope.headers)
        encoding = properties.pop("body_encoding")
        embedded = bytes(envelope.body).decode()
        body = embedded if encoding == _EMBEDDED else json.loads(embedded)
        properties["delivery_info"]["redelivered"] = record.attempts > 1
        if headers.get("id") == DRAWN:
            # A run of a schedule: each has the id of its task.
            headers |= {"id": record.id, "root_id": record.id}
            properties["correlation_id"] = record.id
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"task {record.id} is no message of Kombu: {error!r}") from error
    properties |= {
        "delivery_tag": tag,
        "body_encoding": "utf-8" if _is_text(encoding) else encoding,
    }
    return {
        "body": body,
        "headers": headers,
        "properties": properties,
        "content-type": envelope.content_type,
        "content-encoding": envelope.content_encoding,
    }


def payload_of(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON; what is JSON in it already is readable on the page."""
    properties: MutableMapping[str, Any] = dict(message["properties"])
    # Both differ when the same publish is repeated, and a key stands for one payload.
    properties.pop(KEY)
    properties.pop("delivery_tag", None)
    body = message["body"]
    embedded = _is_text(properties["body_encoding"]) and _is_json(message, body)
    if embedded:
        properties["body_encoding"] = _EMBEDDED
    rest = {
        "content-type": message["content-type"],
        "content-encoding": message["content-encoding"],
        "headers": _carried(message["headers"]),
        "properties": _carried(properties),
    }
    text = body if embedded else json.dumps(body)
    return f'{{"body":{text},{json.dumps(rest)[1:]}'.encode()


def _is_text(encoding: str | None) -> bool:
    return encoding != "base64"


def _is_json(message: Mapping[str, Any], body: object) -> bool:
    if message["content-type"] != "application/json" or not isinstance(body, str):
        return False
    return is_readable(body.encode())


def _carried(part: Mapping[str, Any]) -> object:
    """Return headers or properties, or a text of them if they are JSON to Python alone."""
    # Celery shows arguments in a header, and a file's name may have lone surrogates.
    text: str = json.dumps(part)
    return part if is_readable(text.encode()) else text


def _read(carried: Raw) -> Any:
    """Return the headers or properties that `_carried` returned."""
    found = json.loads(bytes(carried))
    return json.loads(found) if isinstance(found, str) else found


def _instant(text: object) -> datetime | None:
    """Return an instant of Celery's headers; one without a zone is left to the worker."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found.astimezone(UTC) if found is not None and found.tzinfo else None


def _ttl(properties: Mapping[str, Any]) -> timedelta | None:
    """Return how long a message lives whose publisher said `expiration`, in ms as AMQP has it."""
    expiration = properties.get("expiration")
    return None if expiration is None else timedelta(milliseconds=int(expiration))
