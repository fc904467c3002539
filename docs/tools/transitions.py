"""Transitions: every change of a task from one state to another, as one table.

`decide` makes the changes, and this table lists them. The tests compare both: a change without a
row fails, and so does a row that no operation uses. The diagram of docs/concepts.md is drawn from
this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.dependencies import CreateDependent, CreateGraph
from codeq_cluster.core.durable import Park, RecordStep, SendSignal
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.groups import AddMembers, CancelGroup, CreateGroup, SealGroup
from codeq_cluster.core.holds import HoldKey, HoldLimit, HoldQueue, Nack
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged, CreateUnique
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Finish,
    Heartbeat,
    Operation,
    Purge,
    Requeue,
    Revise,
    Staging,
    Submit,
    UndoRequeue,
)
from codeq_cluster.core.reject import Reject
from codeq_cluster.core.relays import TakeRelays
from codeq_cluster.core.schedules import FillBack, Fire, ResumeSchedule, TriggerSchedule
from codeq_cluster.core.task import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """One change of a task that an operation can make.

    Attributes:
        operation: The operation that makes it; `Advance` is time. None for any operation by which
            another task of one of its keys gets or loses a place, by which a schedule goes on, or
            that tells a task what it waits for.
        before: None for a task that does not exist yet.
        after: None for a task that is deleted.
        cause: When the operation makes this change, in words of the HTTP API.
    """

    operation: type[Operation] | None
    before: State | None
    after: State | None
    cause: str

    def __post_init__(self) -> None:
        assert self.before is not None or self.after is not None
        assert self.cause


# An import is not a transition: it adopts a task in the state it had in another cluster.
ARROWS = (
    Arrow(operation=Create, before=None, after=State.READY, cause="create"),
    Arrow(operation=Create, before=None, after=State.DELAYED, cause="create, delayed"),
    Arrow(operation=CreateKeyed, before=None, after=State.READY, cause="create with a key"),
    Arrow(operation=CreateKeyed, before=None, after=State.DELAYED, cause="with a key, delayed"),
    Arrow(operation=CreateKeyed, before=None, after=State.HELD, cause="create, key busy"),
    Arrow(operation=CreateTagged, before=None, after=State.READY, cause="create with tags"),
    Arrow(operation=CreateTagged, before=None, after=State.DELAYED, cause="with tags, delayed"),
    Arrow(operation=CreateUnique, before=None, after=State.READY, cause="create, unique"),
    Arrow(operation=CreateUnique, before=None, after=State.DELAYED, cause="unique, delayed"),
    *(
        Arrow(operation=CreateUnique, before=before, after=after, cause="replaced or debounced")
        for before, after in (
            (State.READY, State.READY),
            (State.READY, State.DELAYED),
            (State.DELAYED, State.READY),
            (State.DELAYED, State.DELAYED),
            (State.DELAYED, State.HELD),
        )
    ),
    *(
        Arrow(operation=CreateUnique, before=state, after=state, cause="kept for another create")
        for state in (State.DONE, State.FAILED)
    ),
    Arrow(
        operation=None, before=State.HELD, after=State.READY, cause="key free, or dependencies met"
    ),
    Arrow(operation=None, before=State.READY, after=State.HELD, cause="another goes first"),
    Arrow(operation=Advance, before=State.DELAYED, after=State.HELD, cause="due, key busy"),
    Arrow(
        operation=Advance, before=State.LEASED, after=State.HELD, cause="lease expired, key busy"
    ),
    Arrow(operation=Abandon, before=State.LEASED, after=State.HELD, cause="abandon, key busy"),
    Arrow(operation=Nack, before=State.LEASED, after=State.HELD, cause="nack at once, key busy"),
    Arrow(
        operation=HoldKey, before=State.LEASED, after=State.HELD, cause="nack that holds its key"
    ),
    Arrow(operation=HoldQueue, before=State.LEASED, after=State.READY, cause="queue held"),
    Arrow(
        operation=HoldQueue, before=State.LEASED, after=State.HELD, cause="queue held, key rests"
    ),
    Arrow(operation=HoldLimit, before=State.LEASED, after=State.READY, cause="limit held"),
    Arrow(
        operation=HoldLimit, before=State.LEASED, after=State.HELD, cause="limit held, key rests"
    ),
    Arrow(operation=Finish, before=None, after=State.HELD, cause="next of a result, key busy"),
    Arrow(operation=TakeRelays, before=None, after=State.HELD, cause="relayed, key busy"),
    Arrow(operation=Requeue, before=State.DEAD, after=State.HELD, cause="requeue, key busy"),
    Arrow(operation=Revise, before=State.DEAD, after=State.HELD, cause="patched, key busy"),
    Arrow(operation=Cancel, before=State.HELD, after=State.FAILED, cause="cancel"),
    Arrow(operation=Purge, before=State.HELD, after=State.FAILED, cause="purge"),
    Arrow(operation=Advance, before=State.HELD, after=State.DEAD, cause="ttl over"),
    Arrow(operation=UndoRequeue, before=State.HELD, after=State.DEAD, cause="requeue undone"),
    Arrow(operation=Advance, before=State.DELAYED, after=State.READY, cause="due, or bulk runNow"),
    Arrow(operation=Advance, before=State.DEAD, after=State.READY, cause="bulk requeue"),
    Arrow(operation=Advance, before=State.DEAD, after=State.HELD, cause="bulk requeue, key busy"),
    *(
        Arrow(operation=Advance, before=state, after=state, cause="bulk priority")
        for state in (State.READY, State.DELAYED)
    ),
    Arrow(operation=Claim, before=State.READY, after=State.LEASED, cause="claim"),
    Arrow(operation=Heartbeat, before=State.LEASED, after=State.LEASED, cause="heartbeat"),
    Arrow(operation=Report, before=State.LEASED, after=State.LEASED, cause="progress"),
    Arrow(operation=Staging, before=State.LEASED, after=State.LEASED, cause="upload"),
    Arrow(operation=Abandon, before=State.LEASED, after=State.READY, cause="abandon"),
    Arrow(operation=Advance, before=State.LEASED, after=State.READY, cause="lease expired"),
    Arrow(operation=Nack, before=State.LEASED, after=State.READY, cause="nack without a delay"),
    Arrow(operation=Nack, before=State.LEASED, after=State.DELAYED, cause="nack"),
    Arrow(operation=HoldKey, before=State.LEASED, after=State.READY, cause="key held for no time"),
    Arrow(operation=Submit, before=State.LEASED, after=State.DONE, cause="result COMPLETED"),
    Arrow(operation=Submit, before=State.LEASED, after=State.FAILED, cause="result FAILED"),
    Arrow(operation=Finish, before=State.LEASED, after=State.DONE, cause="COMPLETED with next"),
    Arrow(operation=Finish, before=State.LEASED, after=State.FAILED, cause="FAILED with next"),
    Arrow(operation=Finish, before=None, after=State.READY, cause="next of a result"),
    Arrow(operation=Finish, before=None, after=State.DELAYED, cause="next of a result, delayed"),
    Arrow(operation=TakeRelays, before=None, after=State.READY, cause="relayed"),
    Arrow(operation=TakeRelays, before=None, after=State.DELAYED, cause="relayed, delayed"),
    Arrow(operation=Fire, before=None, after=State.READY, cause="instant of a schedule"),
    Arrow(operation=FillBack, before=None, after=State.READY, cause="backfill of a schedule"),
    Arrow(operation=TriggerSchedule, before=None, after=State.READY, cause="schedule triggered"),
    *(
        Arrow(
            operation=each,
            before=None,
            after=State.READY,
            cause="queued run, or end of a group",
        )
        for each in (Submit, Cancel, Purge, Abandon, Nack, Reject, Advance, ResumeSchedule)
    ),
    *(
        Arrow(operation=each, before=None, after=State.READY, cause="end of a group")
        for each in (SealGroup, CancelGroup)
    ),
    *(
        Arrow(operation=each, before=None, after=after, cause=f"member of a group{cause}")
        for each in (CreateGroup, AddMembers)
        for after, cause in ((State.READY, ""), (State.DELAYED, ", delayed"))
    ),
    *(
        Arrow(operation=Advance, before=state, after=state, cause="kept or deleted in parts")
        for state in (State.DONE, State.FAILED, State.DEAD)
    ),
    Arrow(
        operation=None,
        before=None,
        after=State.HELD,
        cause="waits for others; key busy",
    ),
    *(
        Arrow(
            operation=None,
            before=each,
            after=State.FAILED,
            cause="overlap, group or dependency",
        )
        for each in (State.READY, State.DELAYED, State.HELD, State.LEASED)
    ),
    *(
        Arrow(operation=each, before=None, after=after, cause=cause)
        for each in (CreateDependent, CreateGraph)
        for after, cause in (
            (State.READY, "dependencies met"),
            (State.DELAYED, "dependencies met, delayed"),
        )
    ),
    Arrow(
        operation=None,
        before=State.HELD,
        after=State.DELAYED,
        cause="dependencies met or key free, delayed",
    ),
    Arrow(
        operation=None,
        before=State.HELD,
        after=State.HELD,
        cause="dependencies met or replaced, key busy",
    ),
    Arrow(operation=TakeRelays, before=State.HELD, after=State.DEAD, cause="dependency failed"),
    Arrow(operation=RecordStep, before=State.LEASED, after=State.LEASED, cause="step"),
    Arrow(operation=Park, before=State.LEASED, after=State.LEASED, cause="park, wait is over"),
    Arrow(operation=Park, before=State.LEASED, after=State.DELAYED, cause="park"),
    Arrow(operation=SendSignal, before=State.DELAYED, after=State.READY, cause="signal"),
    Arrow(operation=SendSignal, before=State.DELAYED, after=State.HELD, cause="signal, key busy"),
    *(
        Arrow(operation=Delete, before=state, after=state, cause="deleted in parts")
        for state in (State.DONE, State.FAILED, State.DEAD)
    ),
    Arrow(operation=Cancel, before=State.READY, after=State.FAILED, cause="cancel"),
    Arrow(operation=Cancel, before=State.DELAYED, after=State.FAILED, cause="cancel"),
    Arrow(operation=Cancel, before=State.LEASED, after=State.FAILED, cause="cancel"),
    *(
        Arrow(operation=AskCancel, before=state, after=State.FAILED, cause="cancel with a reason")
        for state in (State.READY, State.DELAYED, State.HELD, State.LEASED)
    ),
    Arrow(operation=AskCancel, before=State.LEASED, after=State.LEASED, cause="cancel, grace"),
    Arrow(operation=AskCancel, before=None, after=State.READY, cause="run or group goes on"),
    *(
        Arrow(operation=each, before=State.LEASED, after=State.FAILED, cause="end of a grace")
        for each in (Abandon, Nack, Reject, HoldKey, HoldQueue, HoldLimit, Advance)
    ),
    Arrow(operation=Purge, before=State.READY, after=State.FAILED, cause="purge"),
    Arrow(operation=Purge, before=State.DELAYED, after=State.FAILED, cause="purge"),
    Arrow(operation=Abandon, before=State.LEASED, after=State.DEAD, cause="last attempt abandoned"),
    Arrow(operation=Nack, before=State.LEASED, after=State.DEAD, cause="last attempt nacked"),
    Arrow(operation=Reject, before=State.LEASED, after=State.DEAD, cause="nack without requeue"),
    Arrow(operation=Advance, before=State.LEASED, after=State.DEAD, cause="last lease expired"),
    Arrow(operation=Advance, before=State.READY, after=State.DEAD, cause="ttl over"),
    Arrow(operation=Advance, before=State.DELAYED, after=State.DEAD, cause="ttl over"),
    Arrow(operation=Requeue, before=State.DEAD, after=State.READY, cause="requeue"),
    Arrow(operation=Revise, before=State.DEAD, after=State.READY, cause="requeue, patched"),
    Arrow(operation=UndoRequeue, before=State.READY, after=State.DEAD, cause="requeue undone"),
    Arrow(operation=Advance, before=State.DONE, after=None, cause="retention over"),
    Arrow(operation=Advance, before=State.FAILED, after=None, cause="retention over"),
    Arrow(operation=Advance, before=State.DEAD, after=None, cause="retention over"),
    Arrow(operation=Delete, before=State.DONE, after=None, cause="deleted by an admin"),
    Arrow(operation=Delete, before=State.FAILED, after=None, cause="deleted by an admin"),
    Arrow(operation=Delete, before=State.DEAD, after=None, cause="deleted by an admin"),
)

_BY_ENDS = {(arrow.operation, arrow.before, arrow.after): arrow for arrow in ARROWS}
assert len(_BY_ENDS) == len(ARROWS)


def is_note(change: TaskChange) -> bool:
    """Return whether a change is none of a task's course: a dependent is noted, a tag is put."""
    before, after = change.before, change.after
    if before is None or after is None:
        return False
    return before != after and replace(after, more=before.more) == before


def arrow_of(operation: Operation, change: TaskChange) -> Arrow | None:
    """Return the table's row for an operation's change of a task, or None if it has none.

    Args:
        operation: No import.
        change: A change from the operation's decision.
    """
    before = change.before.state if change.before is not None else None
    after = change.after.state if change.after is not None else None
    return _BY_ENDS.get((type(operation), before, after)) or _BY_ENDS.get((None, before, after))
