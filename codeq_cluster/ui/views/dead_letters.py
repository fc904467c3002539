"""Dead letters: grouped by error, listed, requeued and deleted; also purging of queues.

A request must name its dead letters: ids, a kind of error, or all. Otherwise an empty selection
would mean all. An action says until when they died, so that it takes none that its preview has not
counted.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from codeq_cluster.api.declared.bodies import Body, Schema, instant_ms
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request, invalid_body
from codeq_cluster.api.routes.dead_letters import ErrorKindRow, kind_rows, payload_of, read_ids
from codeq_cluster.api.routes.listing import asked_page, caller
from codeq_cluster.api.routes.revising import NULL, revising
from codeq_cluster.broker.requests.dead_letters import BULK_MAX, DeadLetterSelection
from codeq_cluster.broker.requests.triage import Acted, Revising
from codeq_cluster.core.error_kinds import KIND_CHARS_MAX, error_kind
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.ui.views.rows import TaskRows, task_row

# One request acts on so many, which stays well within its time limit; the page repeats it for the
# rest.
AT_ONCE = 1000
LOOKED_AT = 2000  # Dead letters grouped in one request: about 50 ms.

_INVALID = invalid_body()
_SELECT = bad_request("say which: ids, kind or all", "invalid-selection")
_UNTIL = bad_request("invalid 'until' (use RFC3339)", "invalid-until")


class TriageBody(Body):
    """Selects dead letters, and changes to their payloads.

    Attributes:
        until: Only those that died up to then, as the preview says; null for all.
        patch: A merge patch of each payload (RFC 7396); null for none.
        payload: Replaces the payload of the only dead letter named; null keeps it.
    """

    ids: list[str] | None = None
    kind: str | None = None
    all: bool = False
    until: str | None = None
    patch: Raw = NULL
    payload: Raw = NULL


class UndoBody(Body):
    """The requeue to undo, and for which tasks."""

    action: str | None = None
    ids: list[str] | None = None


class PurgeBody(Body):
    """How many waiting tasks to cancel."""

    limit: int | None = None


TRIAGE = Schema(TriageBody)
UNDO = Schema(UndoBody)
PURGE = Schema(PurgeBody)


class KindRows(Struct, rename="camel", kw_only=True):
    """The causes of some of the dead letters; the last page has no cursor."""

    kinds: list[ErrorKindRow]
    cursor: str | UnsetType = UNSET


class Preview(Struct, rename="camel", kw_only=True):
    """A preview of an action: what it affects, and one payload before and after.

    Attributes:
        until: When the newest of the tasks died; None if there is no task.
        before: The payload of one of the tasks; None if there is no task.
        after: None if nothing would change, or nothing can.
    """

    matched: int
    kinds: list[ErrorKindRow]
    more: bool
    until: str | None
    before: str | None
    after: str | None


class ActedView(Struct, rename="camel", kw_only=True):
    """The result of an action; `action` and `ids` undo a requeue."""

    action: str
    ids: tuple[str, ...]
    changed: int
    left_alone: int
    more: bool


async def dead_letters(call: Call) -> HttpAnswer[TaskRows]:
    """Return the dead letters of a queue, the newest first; optionally of one kind only."""
    kind = call.query_text("kind")[:KIND_CHARS_MAX]
    asked = asked_page(call, order=kind)
    found, edge = await call.services.broker.triage.listed(
        caller(call),
        DeadLetterSelection(queue=call.command().lower(), kind=kind),
        after=asked.after,
        count=asked.count,
    )
    rows = list(map(task_row, found))
    return reply(TaskRows(tasks=rows, cursor=asked.cursor(edge)))


async def kinds(call: Call) -> HttpAnswer[KindRows]:
    """Return the causes of the next dead letters of a queue."""
    asked = asked_page(call, order="kinds")
    found, edge = await call.services.broker.triage.kinds(
        caller(call), call.command().lower(), after=asked.after, count=LOOKED_AT
    )
    rows = KindRows(kinds=kind_rows(found), cursor=asked.cursor(edge))
    return reply(rows)


async def preview(call: Call) -> HttpAnswer[Preview]:
    """Return which dead letters an action would affect, and change nothing."""
    body = TRIAGE.decode(call.text)
    wanted, change = _selection(call, body), _revising(call, body)
    found, first, more = await call.services.broker.triage.preview(
        caller(call), replace(wanted, limit=BULK_MAX)
    )
    before = await payload_of(call, first) if first else None
    after = None if before is None or change is None else change.change(before)
    shown = Preview(
        matched=sum(each.count for each in found),
        kinds=kind_rows(found),
        more=more,
        until=rfc3339(max(each.newest_ms for each in found)) if found else None,
        before=before,
        after=after,
    )
    return reply(shown)


async def requeue(call: Call) -> HttpAnswer[ActedView]:
    """Make the next selected dead letters ready again, with changed payloads if asked."""
    body = TRIAGE.decode(call.text)
    acted = await call.services.broker.triage.requeue(
        caller(call), _selection(call, body), revising=_revising(call, body)
    )
    return reply(_view(acted))


async def delete(call: Call) -> HttpAnswer[ActedView]:
    """Delete the next selected dead letters."""
    body = TRIAGE.decode(call.text)
    acted = await call.services.broker.triage.delete(caller(call), _selection(call, body))
    return reply(_view(acted))


async def take_back(call: Call) -> HttpAnswer[dict[str, int]]:
    """Undo a requeue for tasks that nobody has claimed since."""
    body = UNDO.decode(call.text)
    if not body.action or body.ids is None:
        raise _INVALID
    changed = await call.services.broker.triage.take_back(
        caller(call), body.action, read_ids(body.ids)
    )
    return reply({"changed": changed})


async def purge(call: Call) -> HttpAnswer[ActedView]:
    """Cancel the next waiting tasks of a queue, at most as many as the body says."""
    limit = PURGE.decode(call.text).limit
    if limit is None or not 1 <= limit <= BULK_MAX:
        raise bad_request(f"invalid 'limit' (use 1 to {BULK_MAX})", "out-of-range")
    acted = await call.services.broker.triage.purge(
        caller(call), call.command().lower(), limit=min(limit, AT_ONCE)
    )
    return reply(_view(acted))


def _selection(call: Call, body: TriageBody) -> DeadLetterSelection:
    named = [body.ids is not None, body.kind is not None, body.all]
    if sum(named) != 1:
        raise _SELECT
    if body.kind is not None and body.kind != error_kind(body.kind):
        raise _SELECT
    return DeadLetterSelection(
        queue=call.command().lower(),
        ids=() if body.ids is None else read_ids(body.ids),
        kind=body.kind or "",
        until_ms=None if body.until is None else instant_ms(body.until, error=_UNTIL),
        limit=AT_ONCE,
    )


def _revising(call: Call, body: TriageBody) -> Revising | None:
    return revising(call, patch=body.patch, payload=body.payload, ids=body.ids or ())


def _view(acted: Acted) -> ActedView:
    return msgspec.convert(acted, ActedView, from_attributes=True)
