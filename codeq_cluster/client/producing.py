"""Producing: tasks to be created, and the outcome of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from datetime import datetime, timedelta
from math import ceil, isfinite
from typing import Final, TypeAlias
from uuid import uuid4

from msgspec import Raw, Struct
from msgspec.json import encode

from codeq_cluster.client.codecs import Codec

Duration: TypeAlias = timedelta | float  # A number counts seconds.

BATCH_MAX: Final = 100  # Tasks per request; the broker's default bound.
# The broker takes 1 MiB by default; the rest leaves room for the frame.
BATCH_BYTES_MAX: Final = 768 * 2**10


class After(
    Struct, frozen=True, rename={"run_if": "runIf", "on_dead": "onDead", "otherwise": "else"}
):
    """A dependency of a task to be created, with its terms.

    Attributes:
        id: Of the task that it waits for; or say the `ref` of one in the same graph.
        run_if: How that must end: succeeded, failed or ended; None for succeeded.
        otherwise: What becomes of the new task if it cannot: cancel or dead-letter; None for
            cancel.
        on_dead: hold waits for a dead letter to be requeued, fail does not; None for hold.
    """

    id: str | None = None
    ref: str | None = None
    run_if: str | None = None
    otherwise: str | None = None
    on_dead: str | None = None


@dataclass(frozen=True, slots=True)
class Unique:
    """The unique key of a task to be created: at most one task of its queue holds it.

    Attributes:
        key: What is unique, such as `user:42`; of a task with a `key`, among the tasks of that.
        on: While the key is held: `return` that task, `reject` (`Refused`, with its id), `replace`
            what a waiting one says, or `keepLast`: as replace, and while a worker has it, one more
            task waits and is replaced.
        until: When a task lets go: `ended` or `claimed`; None for ended, or for the throttle alone.
        throttle: How long it holds the key from the create on; with `until`, at most.
        debounce: The start, so long after the last create.
        max_wait: The latest start, from the first create on; None for ten times `debounce`.
    """

    key: str
    _: KW_ONLY
    on: str = "return"
    until: str | None = None
    throttle: Duration | None = None
    debounce: Duration | None = None
    max_wait: Duration | None = None

    @property
    def shown(self) -> dict[str, object]:
        """Return it as a request says it."""
        durations = {
            "throttleSeconds": self.throttle,
            "debounceSeconds": self.debounce,
            "maxWaitSeconds": self.max_wait,
        }
        said = {name: whole_seconds(each) for name, each in durations.items() if each is not None}
        return {"key": self.key, "on": self.on, "until": self.until, **said}


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be created; the arguments of `Client.create` are its fields.

    Attributes:
        payload: Any value but None that the client's codec knows; `msgspec.Raw` is JSON as it is.
        priority: 0 to 9; tasks with a greater one go first.
        max_attempts: Deliveries before it is a dead letter; None for the queue's.
        delay: How long to wait before the first delivery; a number counts seconds.
        run_at: The earliest instant of delivery, with its time zone; overrides `delay`.
        ttl: A task not delivered within this time is a dead letter.
        webhook: The URL that is called with the result.
        timeout: How long a handler may take for it; the handler's own limit may be smaller.
        backoff: How the delay between attempts grows: fixed, linear, exponential, exp_equal_jitter
            or exp_full_jitter; None for the queue's, as for the two below.
        backoff_base: The delay it grows from.
        backoff_max: The longest delay it gives.
        idempotency_key: Creates with the same key make one task. None draws a fresh key, so that
            a repeated request makes no second task.
        key: What it shares a limit with: the tasks of its queue with the same key, one after the
            other if the topic says so. Its `idempotency_key` counts among these tasks.
        cost: How many tokens of the rate of its `key` a claim of it spends; 1 if None.
        depends_on: The tasks that it waits for, by id, or by ref in a graph; what they have
            returned is in `inputs` of the worker's task.
        unique: Its unique key, as a text or with more to say; `unique` of what is returned tells
            what became of the create. Without an `idempotency_key` it draws none: a repeated
            request finds the task by its unique key, for as long as that is held.
        tags: Texts by which an operator's lists find it, by name: at most 10, of 64 and 128 bytes.
        metadata: Any value but None that the client's codec knows, at most 4 KiB of JSON: for the
            worker and the webhook; nothing is found by it.
    """

    command: str
    payload: object
    _: KW_ONLY
    priority: int = 0
    max_attempts: int | None = None
    delay: Duration | None = None
    run_at: datetime | None = None
    ttl: Duration | None = None
    webhook: str | None = None
    idempotency_key: str | None = None
    timeout: Duration | None = None
    backoff: str | None = None
    backoff_base: Duration | None = None
    backoff_max: Duration | None = None
    key: str | None = None
    cost: int | None = None
    depends_on: Sequence[str | After] | None = None
    unique: Unique | str | None = None
    tags: Mapping[str, str] | None = None
    metadata: object = None


@dataclass(frozen=True, slots=True)
class NotCreated:
    """One task of several that was not created, or may not have been.

    Attributes:
        task: The task as sent, with its key: creating it again makes no second one.
        error: Why it was not created.
        code: The stable code of the error; `outcome-unknown` if it may have been created.
        retryable: Whether the same create may succeed later.
    """

    task: NewTask
    error: str
    code: str
    retryable: bool = False


# The fields that a task can do without.
OPTIONS: Final = tuple(each.name for each in fields(NewTask) if each.default is not MISSING)


def _on_the_wire() -> Iterator[tuple[str, str, bool]]:
    """Yield each option, its name in the API, and whether it counts seconds there."""
    types = {field.name: field.type for field in fields(NewTask)}
    for option in OPTIONS:
        first, *others = {"backoff": "backoff_policy"}.get(option, option).split("_")
        name = first + "".join(map(str.capitalize, others))
        in_seconds = types[option] == "Duration | None"
        yield option, f"{name}Seconds" if in_seconds else name, in_seconds


_ON_THE_WIRE: Final = tuple(_on_the_wire())


def body_of(task: NewTask, codec: Codec, *, keyless: bool = False) -> bytes:
    """Return a task as the body of a request.

    Args:
        task: With its idempotency key, or without one if it is `keyless`.
        codec: Writes the payload.
        keyless: A result or a schedule makes it, and makes it once without a key; so is one with
            a unique key.

    Raises:
        ValueError: The task has no key yet, `run_at` has no time zone, or a duration is endless.
    """
    keyless = keyless or task.unique is not None
    if not task.idempotency_key and not (keyless and task.idempotency_key is None):
        raise ValueError("idempotency_key: must be a text that is not empty, or None")
    if task.run_at is not None and task.run_at.tzinfo is None:
        raise ValueError(f"run_at={task.run_at}: must be an instant with its time zone")
    body: dict[str, object] = {
        "command": task.command,
        "payload": Raw(codec.encode(task.payload)),
    }
    for option, name, in_seconds in _ON_THE_WIRE:
        value = getattr(task, option)
        if value is not None:
            body[name] = whole_seconds(value) if in_seconds else value
    if task.unique is not None:
        unique = Unique(task.unique) if isinstance(task.unique, str) else task.unique
        body["unique"] = unique.shown
    if task.metadata is not None:
        body["metadata"] = Raw(codec.encode(task.metadata))
    return encode(body)


def fresh_key() -> str:
    """Return a random, unique idempotency key."""
    return uuid4().hex


def seconds_of(duration: Duration) -> float:
    """Return a duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def whole_seconds(duration: Duration) -> int:
    """Return a duration in the API's whole seconds, rounded up.

    Raises:
        ValueError: It is infinite, or not a number.
    """
    seconds = seconds_of(duration)
    if not isfinite(seconds):
        raise ValueError(f"{duration} s: must be a finite number of seconds")
    return ceil(seconds)
