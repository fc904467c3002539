"""Messages: one of taskiq's as a task of this broker, and what its labels mean here; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec import Raw
from taskiq import BrokerMessage, TaskiqMessage
from taskiq.abc.formatter import TaskiqFormatter

from codeq_cluster.client import NewTask
from codeq_cluster.integrations.bodies import payload_of

# A message that came back a hundred times, by crashes or stops of workers, is a dead letter.
DELIVERIES_MAX: Final = 100
PRIORITY_MAX: Final = 9
DELAY_MAX: Final = timedelta(days=366)

# The delivery that a message comes from. Retries and requeues have the labels of their message, so
# it tells them from all that a function sends.
DELIVERY: Final = "codeq_delivery"
# The id of a message that a schedule makes again and again: each run has the id of its task.
DRAWN: Final = "drawn-when-sent"
SCHEDULE: Final = "schedule_id"

_QUEUE: Final = "queue_name"
_PRIORITY: Final = "priority"
_DELAY: Final = "delay"
_FIRST_DELAY: Final = "x_delay"
_RETRIES: Final = "_retries"


def key_of(
    message: BrokerMessage, formatter: TaskiqFormatter, *, queue: str, delay: timedelta | None
) -> str | None:
    """Return the idempotency key of a kick: the same when it is repeated; None for a fresh one.

    Labels are not part of it but the delivery, because middleware changes them at each attempt.
    """
    if SCHEDULE in message.labels:
        # A scheduler may send one id at each instant.
        return None
    said = [message.task_id, message.task_name, queue, str(delay), message.labels.get(DELIVERY)]
    try:
        found = formatter.loads(message.message)
        said += [repr(found.args), repr(sorted(found.kwargs.items()))]
    except Exception:  # noqa: BLE001 - a formatter's own; its message is then known by its bytes
        said.append(message.message.hex())
    return f"taskiq:{hashlib.sha256(msgspec.json.encode(said)).hexdigest()}"


def queue_of(labels: Mapping[str, Any], *, default: str) -> str:
    """Return the queue that the label `queue_name` says."""
    return str(labels.get(_QUEUE) or default)


def delay_of(
    labels: Mapping[str, Any], *, before: Mapping[str, Any], smart: bool
) -> timedelta | None:
    """Return how long a message waits before its first delivery.

    Args:
        labels: Of the message: `x_delay`, or `delay`.
        before: Of the delivery that it comes from, if any.
        smart: `SmartRetryMiddleware` is there, whose `delay` is that between tries: a message that
            is not its retry does not wait for it.

    Raises:
        ValueError: The delay is impossible.
    """
    given = labels.get(_FIRST_DELAY)
    is_retry = str(labels.get(_RETRIES, "")) != str(before.get(_RETRIES, ""))
    if given is None and (is_retry or not smart):
        given = labels.get(_DELAY)
    if given is None:
        return None
    try:
        delay = timedelta(seconds=float(given))
    except (ValueError, OverflowError, TypeError):
        delay = timedelta(-1)
    if not timedelta() <= delay <= DELAY_MAX:
        raise ValueError(f"delay={given!r}: must be 0 to {DELAY_MAX.days} days, in seconds")
    return delay or None


def spent(message: TaskiqMessage, *, smart: bool) -> None:
    """Remove a delay that is over, so that a retry or a requeue does not wait for it again."""
    message.labels.pop(_FIRST_DELAY, None)
    if not smart:
        message.labels.pop(_DELAY, None)


def task_of(
    message: BrokerMessage,
    *,
    queue: str,
    deliveries_max: int,
    delay: timedelta | None = None,
    key: str | None = None,
) -> NewTask:
    """Return the task that carries a message.

    Args:
        deliveries_max: After that many the message is a dead letter.
        delay: Before its first delivery.
        key: Its idempotency key; None for a fresh one.

    Raises:
        ValueError: The priority is impossible.
    """
    said = message.labels.get(_PRIORITY) or 0
    priority = str(said)
    if not (priority.isdecimal() and int(priority) <= PRIORITY_MAX):
        raise ValueError(f"{_PRIORITY}={said!r}: must be 0 to {PRIORITY_MAX}, 9 goes first")
    return NewTask(
        queue,
        Raw(payload_of(message.message)),
        priority=int(priority),
        max_attempts=deliveries_max,
        delay=delay,
        idempotency_key=key,
    )
