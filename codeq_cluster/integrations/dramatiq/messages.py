"""Messages: one of Dramatiq's as a task of this broker, and back; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from dramatiq import Message, MessageProxy, get_encoder
from dramatiq.common import q_name
from dramatiq.errors import DecodeError
from msgspec import Raw

from codeq_cluster.client import NewTask, TaskRecord
from codeq_cluster.integrations.bodies import encoded_of, payload_of

# A message that came back a hundred times, by crashes or stops of workers, is a dead letter.
DELIVERIES_MAX: Final = 100
PRIORITY_MAX: Final = 9
DELAY_MAX: Final = timedelta(days=366)

# The delivery that a message comes from; what is enqueued from another one is another message.
DELIVERY: Final = "codeq_delivery"

_PRIORITY: Final = "broker_priority"
_KINDS: Final[Mapping[str, type]] = {
    "actor_name": str,
    "message_id": str,
    "kwargs": Mapping,
    "options": Mapping,
}


def key_of(message: Message[Any] | MessageProxy, *, delay_ms: int | None) -> str:
    """Return the idempotency key of an enqueue: the same when it is repeated.

    Options are not part of it but the delivery, because middleware changes them at each attempt.
    """
    said = {
        "message_id": message.message_id,
        "queue_name": message.queue_name,
        "actor_name": message.actor_name,
        "args": message.args,
        "kwargs": message.kwargs,
        "delay": delay_ms,
        "delivery": message.options.get(DELIVERY),
    }
    return f"dramatiq:{hashlib.sha256(get_encoder().encode(said)).hexdigest()}"


def task_of(
    message: Message[Any] | MessageProxy,
    *,
    delay_ms: float | None,
    now_ms: int,
    deliveries_max: int,
    key: str | None = None,
) -> NewTask:
    """Return the task that carries a message.

    Args:
        delay_ms: Before its first delivery; None for an `eta` among its options, or at once.
        now_ms: Unix milliseconds, for an `eta`.
        deliveries_max: After that many the message is a dead letter.
        key: Its idempotency key; None for a task that follows another one.

    Raises:
        ValueError: The delay or the priority is impossible.
    """
    fields = message.asdict() | {"queue_name": q_name(message.queue_name)}
    options = fields["options"] = dict(message.options)
    # A worker would hold the message until then; here the broker does.
    eta = options.pop("eta", None)
    if delay_ms is None and isinstance(eta, int | float):
        delay_ms = max(0, eta - now_ms)
    delay = timedelta(milliseconds=delay_ms or 0)
    if not timedelta() <= delay <= DELAY_MAX:
        raise ValueError(f"delay={delay_ms}: must be 0 to {DELAY_MAX.days} days, in milliseconds")
    priority = options.get(_PRIORITY) or 0
    if not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
        raise ValueError(f"{_PRIORITY}={priority!r}: must be 0 to {PRIORITY_MAX}, 9 goes first")
    return NewTask(
        fields["queue_name"],
        Raw(payload_of(get_encoder().encode(fields))),
        priority=priority,
        max_attempts=deliveries_max,
        delay=delay or None,
        idempotency_key=key,
    )


def message_of(record: TaskRecord, *, queue_name: str, delivery: str) -> Message[Any]:
    """Return the message that a task carries.

    Args:
        queue_name: Where it was consumed from: its end is reported there.
        delivery: The name of this delivery.

    Raises:
        DecodeError: Its payload is none of `task_of`, or of another encoder.
    """
    data = encoded_of(record.payload)
    message: Message[Any] = Message.decode(data)
    for name, kind in _KINDS.items():
        if not isinstance(getattr(message, name), kind):
            # It would stop the consumer that hands it out, and be held forever.
            wrong = TypeError(f"{name} is no {kind.__name__}")
            raise DecodeError("A field has another type.", data, wrong)
    return message.copy(queue_name=queue_name, options={DELIVERY: delivery})
