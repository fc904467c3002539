"""Callbacks: verify and read the requests that nodes make to a receiver."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from codeq_cluster.client.records import Artifact, Status
from codeq_cluster.errors import CodeqError

AGE_S_MAX = 300.0  # For the clocks of nodes and receivers, and requests on their way.

_SIGNATURES_MAX = 16  # A stranger writes the header; nodes send four at most.

_Body = TypeVar("_Body", bound=Struct)


class CallbackRefused(CodeqError):
    """A request is not proved to come from the broker, or is none of its callbacks."""


class TaskEnded(Struct, frozen=True, kw_only=True, rename="camel"):
    """A result callback: how a task ended.

    Attributes:
        delivery: Names the callback; the same on every attempt, so drop one that was seen before.
        event_type: The task's command.
        result: As the worker wrote it; None for none.
        error: Why it failed; empty if it did not.
    """

    delivery: str = ""
    task_id: str
    event_type: str
    status: Status
    result: Any
    error: str
    artifacts: tuple[Artifact, ...] | None
    completed_at: datetime


class QueueReady(Struct, frozen=True, kw_only=True, rename="camel"):
    """An availability notice: a queue has become non-empty.

    Attributes:
        delivery: Names the notice.
        event_type: The command, as the subscription names it.
        queue_depth: Tasks that could be claimed when the notice was sent.
        claim_url: The path to claim from, on any node.
    """

    delivery: str = ""
    event_type: str
    available: bool
    queue_depth: int
    claim_url: str
    sent_at: datetime


def verify_callback(
    headers: Mapping[str, str],
    body: bytes,
    *,
    keys: str | Iterable[str],
    age_s_max: float = AGE_S_MAX,
    now_s: float | None = None,
) -> TaskEnded:
    """Return a result callback that is signed with one of the tenant's keys.

    Args:
        headers: Of the request, with names in any case.
        body: The request's bytes as they came; text that was decoded and encoded again may differ.
        keys: As `codeq-cluster webhook key ls` prints them: one, or two during a rotation.
        age_s_max: Refuse older requests, which somebody may have recorded, and later ones.
        now_s: Unix seconds; None for the machine's clock.

    Raises:
        CallbackRefused: The reason is in its text.
    """
    return _verified(TaskEnded, headers, body, keys, age_s_max=age_s_max, now_s=now_s)


def verify_notice(
    headers: Mapping[str, str],
    body: bytes,
    *,
    keys: str | Iterable[str],
    age_s_max: float = AGE_S_MAX,
    now_s: float | None = None,
) -> QueueReady:
    """Return an availability notice that is signed with a key; as `verify_callback`."""
    return _verified(QueueReady, headers, body, keys, age_s_max=age_s_max, now_s=now_s)


def _verified(
    kind: type[_Body],
    headers: Mapping[str, str],
    body: bytes,
    keys: str | Iterable[str],
    *,
    age_s_max: float,
    now_s: float | None,
) -> _Body:
    known = [keys] if isinstance(keys, str) else list(keys)
    if not known or not all(known):
        raise ValueError("verifying needs at least one key, and an empty text is none")
    named = {name.lower(): value for name, value in headers.items()}
    stamp = named.get("x-codeq-timestamp", "")
    if not stamp.isascii() or not stamp.isdecimal() or len(stamp) > 12:
        raise CallbackRefused("no valid X-CodeQ-Timestamp: it is unsigned, or not from a node")
    _check_signatures(named, stamp.encode() + b"." + body, known)
    age_s = (time.time() if now_s is None else now_s) - int(stamp)
    if abs(age_s) > age_s_max:
        raise CallbackRefused(f"it was signed {age_s:.0f} s ago, at most {age_s_max:g} s")
    try:
        found = msgspec.json.decode(body, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CallbackRefused(f"the body is no {kind.__name__}: {error}") from error
    return msgspec.structs.replace(found, delivery=named.get("x-codeq-delivery", ""))


def _check_signatures(named: Mapping[str, str], text: bytes, keys: Iterable[str]) -> None:
    listed = named.get("x-codeq-signatures", "").split(",", _SIGNATURES_MAX)[:_SIGNATURES_MAX]
    pairs = [each.strip().partition("=") for each in listed]
    # A cluster before there were several keys, and codeQ, send one signature without a key's id.
    given = [value for _, _, value in pairs] + [named.get("x-codeq-signature", "")]
    expected = [hmac.digest(key.encode(), text, hashlib.sha256).hex() for key in keys]
    # Every pair is compared, so that the time tells nothing about a key.
    matches = [
        hmac.compare_digest(one.encode(), each.encode()) for one in expected for each in given
    ]
    if not any(matches):
        ids = ", ".join(name for name, _, value in pairs if value) or "none"
        raise CallbackRefused(
            f"no signature is by a key given here; ids of the signing keys: {ids}"
        )
