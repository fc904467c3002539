"""History: the events of a run, one per line, as clients, faults and observers saw them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct


class Type(StrEnum):
    """The type of an event in its operation; only a definite refusal may be `fail`."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class F(StrEnum):
    """The kind of an operation or of a single event."""

    CREATE = "create"
    CLAIM = "claim"
    HEARTBEAT = "heartbeat"
    RESULT = "result"
    NACK = "nack"
    ABANDON = "abandon"
    CANCEL = "cancel"
    READ = "read"
    REQUEUE = "requeue"
    PUT_SCHEDULE = "put-schedule"
    PAUSE_SCHEDULE = "pause-schedule"
    BACKFILL = "backfill"
    SCHEDULE = "schedule"
    RUNS = "runs"
    BEGIN_GROUP = "begin-group"
    ADD_MEMBERS = "add-members"
    SEAL_GROUP = "seal-group"
    GROUP = "group"
    PARTS = "parts"
    MAKE_GRAPH = "make-graph"
    DEPEND = "depend"
    START = "start"
    END = "end"
    REVIVE = "revive"
    BURY = "bury"
    MERGE = "merge"
    TAKE = "take"
    FINISH = "finish"
    TAGGED = "tagged"
    ORDER = "order"
    BEGIN = "begin"
    RECORD = "record"
    PARK = "park"
    SIGNAL = "signal"
    CLOSE = "close"
    STEPS = "steps"
    SOW = "sow"
    SWEEP = "sweep"
    SWEPT = "swept"
    OFFER = "offer"
    ACCEPT = "accept"
    BEAT = "beat"
    STOP = "stop"
    RETURN = "return"
    HAND_IN = "hand-in"
    LAST = "last"
    REJECT = "reject"
    LOG = "log"
    WATCH = "watch"
    SET_KEY = "set-key"
    PHASE = "phase"
    FAULT = "fault"
    STATUS = "status"
    DELIVERY = "delivery"


# Kinds of single events; every other kind is an invocation, with an answer if one came.
HAPPENINGS = frozenset({F.PHASE, F.FAULT, F.STATUS, F.DELIVERY})


# The process name of events with the rows read from dead nodes' disks.
AUTOPSY = "autopsy"
# The process name of events with the members that nodes report, and the name of the phase with the
# expected members.
MEMBERS = "members"
# Parts of a packet fault's detail: packets were held until its end; a share was lost; clients were
# struck too.
HELD = "held, then all at once"
LOST = " lost"
AND_CLIENTS = " and clients"
# The kind of fault that strikes neither nodes nor links: it excuses nobody from a promise.
HOSTILE = "hostile"


# Operations on schedules, and the list of the tasks that these have made.
OF_SCHEDULES = frozenset({F.PUT_SCHEDULE, F.PAUSE_SCHEDULE, F.BACKFILL, F.SCHEDULE, F.RUNS})


# Operations on groups, and the list of members or of completion tasks.
OF_GROUPS = frozenset({F.BEGIN_GROUP, F.ADD_MEMBERS, F.SEAL_GROUP, F.GROUP, F.PARTS})


# Operations on graphs: those that make tasks, and what others name `claim`, `result`, `requeue`
# and the deletion of a dead letter. The checkers of single tasks do not see these.
OF_GRAPHS = frozenset({F.MAKE_GRAPH, F.DEPEND, F.START, F.END, F.REVIVE, F.BURY})

# Creates with a unique key, claims and results of the tasks that these make, and lists by tag.
OF_UNIQUES = frozenset({F.MERGE, F.TAKE, F.FINISH, F.TAGGED})


# Operations on orders: creates, claims and results of theirs, and what is said of their steps.
OF_ORDERS = frozenset({F.ORDER, F.BEGIN, F.RECORD, F.PARK, F.SIGNAL, F.CLOSE, F.STEPS})

# Operations on tasks that are cancelled with a grace: creates, claims, heartbeats, cancels, nacks
# and results of theirs, and the list of them.
OF_GRACES = frozenset({F.OFFER, F.ACCEPT, F.BEAT, F.STOP, F.RETURN, F.HAND_IN, F.LAST})

# Rejects of tasks, which are made and worked on by the operations above, and reads of their logs.
OF_REJECTS = frozenset({F.REJECT, F.LOG})


# Creates of tasks that only a bulk job ends, the start of one, and a look at it.
OF_BULK = frozenset({F.SOW, F.SWEEP, F.SWEPT})


# The kinds of the events that tell of an end.
ENDS = frozenset({"completed", "failed", "cancelled", "dead"})


class Told(Struct, frozen=True, kw_only=True):
    """An event of a task: which, of which entry of the log of its shard."""

    task: str
    kind: str
    shard: int
    index: int


class Stepped(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A durable step as an answer shows it, in milliseconds of its shard's clock.

    Attributes:
        content: Its value; of a wait, the payload of the signal that has ended it, if one has.
        until_ms: When a wait ends by itself; 0 for a step that does not wait.
        open: The wait is not over.
    """

    name: str
    content: str = ""
    signal: str = ""
    at_ms: int = 0
    until_ms: int = 0
    open: bool = False


class Sent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A signal as an answer shows it; one that is read has no content any more."""

    name: str
    content: str = ""
    read: bool = False


class Merging(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a create says of its unique key, and its tag."""

    key: str
    on: str
    debounce_ms: int = 0
    max_wait_ms: int = 0
    tag: str = ""


class Made(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a create with a unique key, in milliseconds of its shard's clock.

    Attributes:
        how: What it did.
        start_ms: When the task can be claimed; 0 if it is not delayed.
    """

    how: str
    created_ms: int
    changed_ms: int
    start_ms: int = 0


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked for of a schedule: `cron` in a zone or `every`."""

    overlap: str
    cron: str = ""
    zone: str = "UTC"
    every: str = ""
    note: str = ""


class Counts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule says of itself.

    Attributes:
        next_ms: Every instant before it is decided; 0 for none.
        paused: By whom.
    """

    next_ms: int = 0
    made: int = 0
    missed: int = 0
    skipped: int = 0
    paused: str = ""
    filling: bool = False


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task of a schedule's run, in Unix milliseconds.

    Attributes:
        created_ms, changed_ms: When it was made, and when it last changed.
    """

    task: str
    schedule: str
    at_ms: int
    created_ms: int
    changed_ms: int
    status: str
    error: str = ""


class Tally(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a group says of itself.

    Attributes:
        counts: Of its members: all, completed, failed, cancelled, dead.
        then: Its completion task; empty for none.
    """

    status: str
    counts: tuple[int, int, int, int, int]
    then: str = ""


class Swept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a bulk job says of itself; it has `parts` of the `shards` that it is to have."""

    status: str
    selected: int = 0
    changed: int = 0
    parts: int = 0
    shards: int = 0


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member of a group, its completion task, or a task of a unique key, in Unix milliseconds.

    Attributes:
        dead: It is a dead letter.
        changed_ms: When it last changed.
        counts: Of a completion task: see `Tally`.
        attempts: How often it was handed out.
    """

    task: str
    group: str
    content: str
    status: str
    created_ms: int
    changed_ms: int
    error: str = ""
    dead: bool = False
    counts: tuple[int, int, int, int, int] | None = None
    attempts: int = 0

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.dead or self.status in ("COMPLETED", "FAILED")


class Need(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that another one waits for, with its terms as they are sent.

    Attributes:
        parent: Its id, or its name in the request that makes it.
    """

    parent: str
    run_if: str
    otherwise: str
    on_dead: str


class Handed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task that waited was handed: how the one of this name has ended."""

    name: str
    status: str
    content: str = ""


class Follow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that a result makes, a member that is added to a group, or a task of a graph.

    Attributes:
        content: Its payload, as it is sent.
        key: Its idempotency key, as it is sent and in answers.
        task: Its id, in answers; empty if it has a key.
        lane: The key that it shares a limit with, which decides its shard; of a graph's task.
    """

    content: str = ""
    key: str = ""
    task: str = ""
    lane: str = ""
    needs: tuple[Need, ...] = ()


class Args(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of an operation or a single event; unused fields are left out.

    Attributes:
        content: The payload of a create, or the result of a submit, as JSON text; the reason of a
            reject; the line that a heartbeat writes. Unique to it.
        task: Id of the task acted upon.
        token: Lease token that was sent.
        shard: The shard of a keyed create; -1 if only the broker can tell.
        delay_ms: Of a create or a nack; the grace of a cancel.
        hold: Of a nack: the whole key of the task waits so long, or its queue if that has limits.
        paused: Of a change of a key.
        ttl_ms: Of a create.
        lease_ms: Of a claim; the extension of a heartbeat.
        wait_ms: How long a claim waits for a task.
        any_command: The claim took any command; all tasks that were worked on have `command`.
        deadline_ms: The broker must have answered by then, waits not counted.
        webhook: Whether the create named a webhook.
        final: Whether it is a read after everything came to rest.
        name: Of a phase, of a kind of fault, of a step, of a signal or of a watcher.
        signal: What a wait waits for.
        nodes: The nodes that a fault strikes.
        on: Whether a fault begins; otherwise it ends.
        detail: Of a fault: its shape.
        amount_ms: Of a clock fault: the largest shift.
        next: Of a result: the tasks it makes, all of `command`. Of a group: its new members. Of a
            graph: its tasks.
        schedule: The name of a schedule.
        plan: Of a put of a schedule.
        from_ms, to_ms: Of a backfill: its first and its last instant.
        key: Of a create: what the task shares a limit with. Of a change: the key.
        group: The name of a group.
        merging: Of a create with a unique key.
        tag: Of a list by tag, of a create for a bulk job, or of what that selects.
        after: Of a page of events: the cursor of the one before; empty begins now.
    """

    content: str = ""
    command: str = ""
    task: str = ""
    token: int = 0
    shard: int = -1
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    attempts_max: int = 0
    idempotency_key: str = ""
    lease_ms: int = 0
    wait_ms: int = 0
    any_command: bool = False
    deadline_ms: int = 0
    status: str = ""
    webhook: bool = False
    final: bool = False
    name: str = ""
    signal: str = ""
    nodes: tuple[str, ...] = ()
    on: bool = False
    detail: str = ""
    amount_ms: int = 0
    next: tuple[Follow, ...] = ()
    schedule: str = ""
    plan: Plan | None = None
    from_ms: int = 0
    to_ms: int = 0
    key: str = ""
    group: str = ""
    merging: Merging | None = None
    tag: str = ""
    after: str = ""
    hold: bool = False
    paused: bool = False


class Group(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One shard as one node sees it.

    Attributes:
        voters, learners: Its members, ascending; empty if they were not asked for.
        changing: Whether the members may not be committed yet.
    """

    shard: int
    leads: bool = False
    term: int = 0
    applied: int = 0
    digest: str = ""
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    changing: bool = False


class Out(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer; unused fields are left out.

    Attributes:
        http: Status, 0 if the connection broke.
        code: The error's stable code, or the connection's error.
        task: Id of the task in the answer; empty for a claim that found nothing.
        content: The payload of a claim or create, the stored result of a submit or read.
        payload: Of a read: the payload.
        attempt: Of a claim: the number of this delivery, from 1. Of a read: deliveries so far.
        dead: The task went to the dead letters.
        absent: The task does not exist.
        applied: Of a fault: how many targets were seen to be struck, read back from them.
        took_ms: Of a fault after which a node fetched a snapshot: for how long.
        delivery: Of a webhook call: its id.
        signed: Of a webhook call: whether the signature is valid.
        next: Of a result, or of a read that shows one: the tasks it made.
        parent: Of a read: the task whose result made this one; empty for none.
        counts: Of a schedule.
        runs: Of all schedules.
        tally: Of a group.
        parts: Of all groups, of all unique keys, or all tasks of graphs.
        inputs: Of a claim.
        made: Of a create with a unique key.
        steps, signals: Of an order.
        swept: Of a bulk job.
        told, cursor: Of a page of events.
        until_ms: Of a heartbeat: the deadline of the task's cancel; 0 for none.
        lines: Of a task's log.
    """

    http: int = 0
    code: str = ""
    task: str = ""
    token: int = 0
    attempt: int = 0
    content: str = ""
    payload: str = ""
    shard: int = -1
    priority: int = 0
    status: str = ""
    location: str = ""
    error: str = ""
    dead: bool = False
    absent: bool = False
    replayed: bool = False
    applied: int = 0
    took_ms: int = 0
    groups: tuple[Group, ...] = ()
    delivery: str = ""
    signed: bool = False
    next: tuple[Follow, ...] = ()
    parent: str = ""
    counts: Counts | None = None
    runs: tuple[Run, ...] = ()
    tally: Tally | None = None
    parts: tuple[Part, ...] = ()
    inputs: tuple[Handed, ...] = ()
    made: Made | None = None
    steps: tuple[Stepped, ...] = ()
    signals: tuple[Sent, ...] = ()
    swept: Swept | None = None
    until_ms: int = 0
    told: tuple[Told, ...] = ()
    cursor: str = ""
    lines: tuple[str, ...] = ()


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a history.

    Attributes:
        i: Its number, from 0.
        t_ns: Nanoseconds since the run began, on one monotonic clock for all.
        p: The logical process; it has at most one operation in flight, and none after an `info`.
        node: Asked, observed or empty.
    """

    i: int
    t_ns: int
    p: str
    f: F
    type: Type
    node: str = ""
    args: Args = Args()
    out: Out = Out()


class Recorder:
    """Writes a history while it happens; a context manager. The file is synced at the end.

    Args:
        path: The file; None keeps the history in memory only.
        clock_ns: Nanoseconds that never jump.
    """

    def __init__(
        self, path: Path | None, *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._file = None if path is None else path.open("wb")
        self._encoder = msgspec.json.Encoder()
        self._clock_ns = clock_ns
        self._begun_ns = clock_ns()
        self.events: list[Event] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the recording began."""
        return self._clock_ns() - self._begun_ns

    def record(
        self,
        p: str,
        f: F,
        kind: Type,
        *,
        node: str = "",
        args: Args | None = None,
        out: Out | None = None,
    ) -> Event:
        """Append an event that happens now."""
        event = Event(
            i=len(self.events),
            t_ns=self.now_ns,
            p=p,
            f=f,
            type=kind,
            node=node,
            args=args or Args(),
            out=out or Out(),
        )
        self.events.append(event)
        if self._file is not None:
            self._file.write(self._encoder.encode(event) + b"\n")
        return event

    def fault(self, args: Args, out: Out) -> None:
        """Append the begin or the end of a fault, as `args` says."""
        self.record("nemesis", F.FAULT, Type.INFO, args=args, out=out)

    def phase(self, p: str, name: str, *, nodes: Iterable[str] = (), detail: str = "") -> None:
        """Append that a phase begins."""
        args = Args(name=name, nodes=tuple(nodes), detail=detail)
        self.record(p, F.PHASE, Type.INFO, args=args)


def load(path: Path) -> list[Event]:
    """Read a history.

    Raises:
        ValueError: A line is not an event, or lines are missing.
    """
    decoder = msgspec.json.Decoder(Event)
    events = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            try:
                event = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}:{number + 1}: no event of a history: {error}") from error
            if event.i != number:
                raise ValueError(f"{path}:{number + 1}: event {event.i} where {number} is due")
            events.append(event)
    return events


def dump(events: Iterable[Event], path: Path) -> None:
    """Write a whole history."""
    encoder = msgspec.json.Encoder()
    path.write_bytes(b"".join(encoder.encode(event) + b"\n" for event in events))


def renumbered(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events renumbered in their order."""
    for number, event in enumerate(events):
        yield msgspec.structs.replace(event, i=number)
