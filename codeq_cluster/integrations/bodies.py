"""Bodies: another framework's message as the payload of a task, and a task as a follow-up; pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Struct

from codeq_cluster.client import NewTask
from codeq_cluster.core.bounds import is_deeper

DEPTH_MAX: Final = 200  # The broker's default bound on how deep a payload or a result nests.
# Leaves room for what frames the text, and for a broker with half of the default bound.
_READABLE_DEPTH_MAX: Final = DEPTH_MAX // 2


class _Encoded(Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of an encoder that does not write JSON."""

    base64: str


def fault_of(text: bytes, *, depth_max: int = DEPTH_MAX) -> str:
    """Return why a broker would not take a text as JSON; empty if it would."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        # NaN and lone surrogates, for two, are JSON to Python alone.
        return str(error)
    except RecursionError:
        return f"nests deeper than {depth_max}"
    return f"nests deeper than {depth_max}" if is_deeper(text.decode(), depth_max) else ""


def is_readable(text: bytes) -> bool:
    """Return whether a payload may hold a text as JSON, which people can read on the page."""
    return not fault_of(text, depth_max=_READABLE_DEPTH_MAX)


def payload_of(encoded: bytes) -> bytes:
    """Return what an encoder wrote as JSON, readable on the page if it is JSON already."""
    if is_readable(encoded):
        return encoded
    return msgspec.json.encode(_Encoded(b64encode(encoded).decode()))


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
