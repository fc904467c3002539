"""Durable: what a task's function has recorded, what it waits for, and the signals sent to it.

A step is a row beside its task. The next delivery gets all of them, so a function that begins again
passes over what it has done. A wait is a step as well: open until its instant or its signal comes.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Annotated, TypeAlias

from msgspec import Struct

from codeq_cluster.core.bounds import (
    DIGEST,
    TASK_ID,
    Id,
    Instant,
    JsonOrNone,
    Number,
    Owner,
    Seq,
    Subject,
    text,
    that,
)
from codeq_cluster.core.stored_item import Place, StoredItem

STEPS_MAX = 1000  # Of one task, open ones included.
STEP_BYTES_MAX = 65_536  # Of one step's value, and of one signal's payload.
# Of one task: signals may fill one half, so they never keep the steps from the other one.
SIGNALS_BYTES_MAX = 2**20
DURABLE_BYTES_MAX = 2 * SIGNALS_BYTES_MAX
UNREAD_MAX = 100  # Signals of one task that nobody has waited for yet.
SIGNALS_MAX = 1000  # Signals of one task, read ones included: their keys are remembered.
PARK_MS_MAX = 366 * 86_400_000
STEP_NAME_BYTES_MAX = 128
# Rows that one decision deletes with their tasks, so that it delays no other for long.
CLEARED_MAX = 512

SIGNAL_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
SIGNAL_NAME_WORDS = "1 to 128 of A-Za-z0-9._:@-"
STEP_NAME = text(STEP_NAME_BYTES_MAX, empty=False)
StepName: TypeAlias = Annotated[str, STEP_NAME]
# The bounds by the names that a refusal gives them.
BOUNDS_OF = {
    "steps": ("steps of one task", STEPS_MAX),
    "stepBytes": ("bytes beside one task", DURABLE_BYTES_MAX),
    "unreadSignals": ("signals that a task has not waited for", UNREAD_MAX),
    "signals": ("signals to one task", SIGNALS_MAX),
    "signalBytes": ("bytes of signals beside one task", SIGNALS_BYTES_MAX),
}

_ROW_ID = re.compile(rf"{TASK_ID.pattern}\.[0-9a-f]{{32}}")
_RowId: TypeAlias = Annotated[str, that(_ROW_ID.fullmatch, "a task's id, a dot and a digest")]
_SignalName: TypeAlias = Annotated[str, that(SIGNAL_NAME.fullmatch, SIGNAL_NAME_WORDS)]
_SignalNameOrNone: TypeAlias = Annotated[
    str, that(SIGNAL_NAME.fullmatch, SIGNAL_NAME_WORDS, empty=True)
]


class Step(StoredItem, frozen=True, array_like=True, tag="step", kw_only=True):
    """One thing that a task's function has done, or waits for.

    Attributes:
        id: The task's, a dot and the digest of the name.
        number: Its place among the task's steps, by the time of recording; from 1.
        position: Its place among the calls of the function, as the worker counts them; 0 if it
            does not.
        value: JSON text: what the step has returned, or the signal's payload; empty for a wait
            that no signal has ended.
        at_ms: When it was recorded; of a wait, when it began, and then when it ended.
        signal: What it waits for; empty for none.
        until_ms: When the wait ends by itself; 0 for a step that does not wait.
        token: The lease under which the wait began.
        is_open: The wait is not over.
    """

    place = Place.TASK

    tenant: Owner
    id: _RowId
    name: StepName
    number: Number
    position: Number = 0
    value: JsonOrNone = ""
    at_ms: Instant = 0
    signal: _SignalNameOrNone = ""
    until_ms: Instant = 0
    token: Instant = 0
    is_open: bool = False

    @property
    def size(self) -> int:
        """Return how many bytes count against the task's bound and its tenant's budget."""
        return len(self.name.encode()) + len(self.value.encode())


class Signal(StoredItem, frozen=True, array_like=True, tag="signal", kw_only=True):
    """A message to a task; once it is read, only its key is remembered.

    Attributes:
        id: The task's, a dot and the digest of the idempotency key, or of the request.
        payload: JSON text; empty once it is read.
        seq: Its place among the signals.
        digest: Of name and payload, so that a repetition is told from another signal.
    """

    place = Place.TASK

    tenant: Owner
    id: _RowId
    name: _SignalName
    seq: Seq
    digest: Annotated[str, DIGEST]
    payload: JsonOrNone = ""
    sent_ms: Instant = 0
    is_read: bool = False

    @property
    def size(self) -> int:
        """Return how many bytes count; see `Step.size`."""
        return 0 if self.is_read else len(self.name.encode()) + len(self.payload.encode())


class RecordStep(Struct, frozen=True, array_like=True, tag="record_step", kw_only=True):
    """Record what a step of a leased task has returned, and extend the lease by `extend_ms`."""

    id: Id
    tenant: Owner
    worker: Subject
    name: str
    value: str
    extend_ms: int
    position: int = 0
    token: int = 0


class Park(Struct, frozen=True, array_like=True, tag="park", kw_only=True):
    """Give a leased task back until an instant or a signal, unless one of them has come.

    Attributes:
        step: The name of the wait.
        until_ms: The instant; 0 for `wait_ms` from now, or for the longest wait if that is 0, too.
        keeps_key: No other task of its key takes its place meanwhile.
        extend_ms: If the wait is over already, the lease is extended by this.
    """

    id: Id
    tenant: Owner
    worker: Subject
    step: str
    extend_ms: int
    signal: str = ""
    until_ms: int = 0
    wait_ms: int = 0
    keeps_key: bool = False
    position: int = 0
    token: int = 0


class SendSignal(Struct, frozen=True, array_like=True, tag="send_signal", kw_only=True):
    """Send a signal to a task; a second one with the same key is a retry."""

    request: str
    id: Id
    tenant: Owner
    name: str
    payload: str
    key: str = ""


DurableOperation = RecordStep | Park | SendSignal


def row_id(task_id: str, name: str) -> str:
    """Return the id of a step by its name, or of a signal by its key."""
    return f"{task_id}.{digest_of(name)}"


def digest_of(name: str) -> str:
    """Return a name as a digest, because it may be any text."""
    return blake2b(name.encode(), digest_size=16).hexdigest()
