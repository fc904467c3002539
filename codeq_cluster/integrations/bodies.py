"""Bodies: another framework's message as the payload of a task, and a task as a follow-up; pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import timedelta

import msgspec
from msgspec import Struct

from codeq_cluster.client import NewTask


class _Encoded(Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of an encoder that does not write JSON."""

    base64: str


def payload_of(encoded: bytes) -> bytes:
    """Return what an encoder wrote as JSON, readable on the page if it is JSON already."""
    try:
        msgspec.json.decode(encoded)
    except (msgspec.DecodeError, ValueError, RecursionError):
        # NaN, for one, is JSON to Python alone.
        return msgspec.json.encode(_Encoded(b64encode(encoded).decode()))
    return encoded


def encoded_of(payload: str) -> bytes:
    """Return what the encoder wrote whose payload this is; any other payload is returned as is."""
    try:
        return b64decode(msgspec.json.decode(payload, type=_Encoded).base64)
    except (msgspec.DecodeError, ValueError):
        return payload.encode()


def follow_up(task: NewTask) -> bytes:
    """Return a task as a result of the API names it."""
    fields: dict[str, object] = {
        "command": task.command,
        "payload": task.payload,
        "priority": task.priority,
        "maxAttempts": task.max_attempts,
    }
    if isinstance(task.delay, timedelta):
        fields["delaySeconds"] = -(-task.delay // timedelta(seconds=1))
    return msgspec.json.encode(fields)
