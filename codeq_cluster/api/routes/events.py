"""Events: what happens to the tenant's tasks, as a stream or page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.declared.operations import COMMAND_SCHEMA, Answer, Routes
from codeq_cluster.api.declared.parameters import header, query, several
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.answer import HEADERS, HttpAnswer, encode
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure
from codeq_cluster.api.http.refusals import INVALID_COMMAND, NOT_ALLOWED, TASK_NOT_FOUND, no_integer
from codeq_cluster.api.http.waits import WaitEnded
from codeq_cluster.api.routes.tags import INVALID_TAG, TOO_EARLY, asked_tags
from codeq_cluster.api.routes.task_views import TASK_ID, ProgressView, progress_view, status_of
from codeq_cluster.auth import Access, Identity
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.feed.cursor import CursorExpired, CursorInvalid, OtherHistory
from codeq_cluster.broker.feed.events import Event, EventFilter, EventKind
from codeq_cluster.broker.feed.feed import Reader
from codeq_cluster.core.bounds import COMMAND, REASON_CHARS_MAX
from codeq_cluster.core.groups import GROUP_NAME
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.errors import CodeqError, NoLeader

ROUTES = Routes(__name__, __doc__, Access.TENANT)

QUIET_S: Final = 15.0  # Then a stream says how far it is, which fails if the client is gone.
STREAM_S_MAX: Final = 900.0  # Its client resumes, perhaps on a node with fewer streams.
_BLOCKS: Final = 16  # Of one write, with at most 4 KiB each.
_STREAM: Final = "text/event-stream"
_LAST_SEEN: Final = "Last-Event-ID"

_BEGIN_ANEW = (
    "read what you follow once more (a task, a list by tag), and begin without a cursor: "
    "what happened in between is not told"
)
EXPIRED = ApiError(
    410, f"the log has no more what follows the cursor; {_BEGIN_ANEW}", "cursor-expired"
)
OTHER = ApiError(
    410,
    f"the cursor is of another cluster, or of this one before its log was lost; {_BEGIN_ANEW}",
    "other-history",
)
INVALID_CURSOR = bad_request("invalid cursor (use one from this route)", "invalid-cursor")
INVALID_KINDS = bad_request(f"invalid 'kinds' (use {', '.join(EventKind)})", "invalid-kinds")
INVALID_TASK = bad_request("invalid 'task' (use a task's id)", "invalid-task")
INVALID_GROUP = bad_request("invalid 'group' (use a group's id)", "invalid-group")


class EventView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Where a task stands after an entry of its shard's log.

    `kind` is its state, or `updated` if only something within it has changed: its lease, progress,
    tags. `deleted` says no more than the id, and the queue in lower case. `attempts` counts its
    deliveries, `endings` its ends: a task that is requeued has several. Payload and result are with
    the task, as is the rest of a long `error`.
    """

    kind: EventKind
    task_id: str
    command: str
    at: str
    status: str = ""
    attempts: int = 0
    endings: int = 0
    worker_id: str = ""
    error: str = ""
    group_id: str = ""
    tags: dict[str, str] | UnsetType = UNSET
    progress: ProgressView | UnsetType = UNSET
    shard: int
    index: Int64


class EventPage(Struct):
    """The next events, and the cursor after them: `after` of the next request."""

    events: Sequence[EventView]
    cursor: str


_EXAMPLE = EventView(
    kind=EventKind.COMPLETED,
    task_id=TASK_ID,
    command="resize-image",
    at="2026-01-31T12:00:07.000Z",
    status="COMPLETED",
    attempts=1,
    endings=1,
    shard=3,
    index=1207,
)
_CURSOR = "mQHNBLfO2Kk0gc0EuM4ZGrlj"


@ROUTES(
    "GET",
    "/events",
    Answer(
        "The next events, none if there was none in time.",
        EventPage([_EXAMPLE], _CURSOR),
        body=EventPage,
    ),
    Answer(
        f"With `Accept: {_STREAM}`, an endless stream of the same events: `data` is one of them, "
        "`id` the cursor after it. An event named `error` is the last: its data is the error.",
        media=_STREAM,
    ),
    parameters=(
        query(
            "command",
            "Only tasks of this queue.",
            INVALID_COMMAND,
            NOT_ALLOWED,
            pattern=COMMAND_SCHEMA["pattern"],
        ),
        several(
            "tag",
            "Only tasks with this tag, as `name:value`; may be repeated, for tasks that have all "
            "of them.",
            INVALID_TAG,
            TOO_EARLY,
        ),
        query("task", "Only this task; without a cursor it must exist.", INVALID_TASK),
        query("group", "Only members of this group.", INVALID_GROUP),
        query("kinds", f"Only these, between commas: {', '.join(EventKind)}.", INVALID_KINDS),
        query(
            "after",
            "The cursor to go on after, on any node; absent to begin now.",
            INVALID_CURSOR,
        ),
        query(
            "waitSeconds",
            "How long to wait for an event; clamped to 0 to "
            "{node.limits.result_wait_seconds_max}. A stream does not end so.",
            no_integer("waitSeconds"),
            type="integer",
            default=0,
        ),
        header(
            _LAST_SEEN,
            "The same as `after`, and before it: a stream's client repeats the last `id`.",
        ),
    ),
    errors=(EXPIRED, OTHER, TASK_NOT_FOUND),
)
async def events(call: Call) -> HttpAnswer[EventPage] | web.StreamResponse:
    """Watch the tenant's tasks; a token that names commands sees only tasks of these.

    The events of a task, and of all tasks of a shard, come in order. Each comes at least once: one
    that was seen may come again after a reconnect. What a task went through within one entry of the
    log is one event, with its last state. A cursor is good for as long as a node's log holds what
    follows it: at least `raft.keepEntries` entries of each shard, but no more than
    `raft.logBytesMax`.
    """
    only = _only(call)
    after = call.headers.get(_LAST_SEEN.lower(), "") or call.query_text("after")
    wait_s = call.query_integer("waitSeconds")
    wait_s = min(max(wait_s, 0), call.services.settings.limits.result_wait_seconds_max)
    identity, shares, feed = call.identity, call.services.shares, call.services.feed
    with shares.events.one(identity.tenant, identity.subject), feed.watched():
        if feed.isolated:
            raise NoLeader("this node may not get every entry now: ask another node")
        deadline = deadline_in(call.timeout_s)
        try:
            with shares.waits.waiting():
                reader = await feed.reader(only, after, deadline=deadline)
            if only.task_id and not after:
                await _check_exists(call, only.task_id)
            if _STREAM in call.headers.get("accept", ""):
                return await _stream(call, reader)
            found = []
            with suppress(WaitEnded), shares.waits.waiting():
                async with asyncio.timeout_at(deadline + wait_s):
                    found = await reader.next(wait_s)
        except WaitEnded as stops:
            raise NoLeader("this node stops: ask another node") from stops
        except TimeoutError as late:
            raise NoLeader("too many read older entries here: ask another node") from late
        except (CursorInvalid, CursorExpired, OtherHistory) as refused:
            _refuse(refused)
        page = b'{"events":[%b],"cursor":"%b"}'
        return HttpAnswer(page % (b",".join(map(_shown, found)), reader.cursor.encode()))


async def _check_exists(call: Call, task_id: str) -> None:
    """Refuse a task that is not there, whose watcher would wait in vain."""
    tenant, broker = call.identity.tenant, call.services.broker
    if await broker.task(tenant, task_id, stale=False, timeout_s=call.timeout_s) is None:
        raise TASK_NOT_FOUND


async def _stream(call: Call, reader: Reader) -> web.StreamResponse:
    """Send events until the client leaves, its token or its time ends, or this node stops."""
    response = web.StreamResponse(
        headers={
            **HEADERS,
            "Content-Type": f"{_STREAM}; charset=utf-8",
            "X-Accel-Buffering": "no",
            "X-Request-Id": call.request_id,
        }
    )
    # Its client goes on elsewhere: a connection kept open would delay the stop of this node.
    response.force_close()
    lives_s = call.identity.expires_s - call.services.now_ms() / 1000
    ends_s = asyncio.get_running_loop().time() + min(STREAM_S_MAX, lives_s)
    with suppress(ConnectionError):  # The client is gone.
        await response.prepare(call.request)
        try:
            async with asyncio.timeout_at(ends_s):
                await _feed(call, reader, response, ends_s)
        except TimeoutError:
            # What a slow client has not taken by the end of its token it shall not get.
            transport = call.request.transport
            if transport is not None and transport.get_write_buffer_size():
                transport.abort()
        except CodeqError as ended:
            error = _error_of(ended)
            said = encode({"error": error.text, "code": error.code, "retryable": error.retryable})
            await response.write(b"event: error\ndata: %b\n\n" % said)
    return response


async def _feed(call: Call, reader: Reader, response: web.StreamResponse, ends_s: float) -> None:
    loop = asyncio.get_running_loop()
    # A client that loses the connection before the first event resumes here.
    await response.write(b"retry: 1000\nid: %b\n\n" % reader.cursor.encode())
    while (left_s := ends_s - loop.time()) > 0:
        try:
            with call.services.shares.waits.waiting():
                found = await reader.next(min(QUIET_S, left_s))
        except WaitEnded:
            return
        # The last block has the cursor after all of them: whoever has seen less resumes before.
        blocks = [b"data: %b\n\n" % _shown(event) for event in found]
        blocks.append(b"id: %b\n%b" % (reader.cursor.encode(), blocks.pop() if blocks else b"\n"))
        # A client that does not read stops the writes: little waits for it in memory.
        for first in range(0, len(blocks), _BLOCKS):
            await response.write(b"".join(blocks[first : first + _BLOCKS]))
        await asyncio.sleep(0)  # A write that fits the socket does not wait.
        if not found and call.services.feed.isolated:
            return


def _shown(event: Event) -> bytes:
    """Return an event as JSON, made once for all who see it."""
    if not event.shown:
        event.shown = encode(_view(event))
    return event.shown


def _view(event: Event) -> EventView:
    view = EventView(
        kind=event.kind,
        task_id=event.task_id,
        command=event.queue,
        at=rfc3339(event.at_ms),
        shard=event.shard,
        index=event.index,
    )
    task = event.task
    if task is None:
        return view
    view.command, view.status = task.command, status_of(task)
    view.attempts, view.endings = task.attempts, task.endings
    view.error = task.error[:REASON_CHARS_MAX]
    view.worker_id = task.worker
    more = task.more
    if more is None:
        return view
    if more.member is not None:
        view.group_id = more.member.group
    if more.tags:
        view.tags = dict(more.tags)
    if more.progress is not None:
        view.progress = progress_view(more.progress)
    return view


def _only(call: Call) -> EventFilter:
    """Return what the query selects of what the token may see.

    Raises:
        ApiError: A part of the query is refused.
    """
    command, task_id = call.query_text("command"), call.query_text("task")
    group, kinds = call.query_text("group"), call.query_text("kinds")
    if command and not COMMAND.fullmatch(command):
        raise INVALID_COMMAND
    if task_id and not is_task_id(task_id):
        raise INVALID_TASK
    if group and not GROUP_NAME.fullmatch(group):
        raise INVALID_GROUP
    wanted = kinds.split(",") if kinds else []
    if not set(wanted) <= set(EventKind):
        raise INVALID_KINDS
    allowed = _queues_of(call.identity)
    queues = allowed
    if command:
        queues = frozenset((command.lower(),))
        if allowed is not None and not queues <= allowed:
            raise NOT_ALLOWED
    return EventFilter(
        tenant=call.identity.tenant,
        queues=queues,
        task_id=task_id,
        group=group,
        tags=frozenset(asked_tags(call)),
        kinds=frozenset(map(EventKind, wanted)),
    )


def _queues_of(identity: Identity) -> frozenset[str] | None:
    """Return the queues of the commands that a token names; None if it names none, or all."""
    named = identity.event_types
    if not named or "*" in named:
        return None
    return frozenset(map(str.lower, named))


def _refuse(error: CodeqError) -> NoReturn:
    raise _error_of(error) from error


def _error_of(error: CodeqError) -> ApiError:
    match error:
        case CursorInvalid():
            return INVALID_CURSOR
        case CursorExpired():
            return EXPIRED
        case OtherHistory():
            return OTHER
        case _:
            return from_failure(error)
