"""Logs: what the workers of a task have said while they worked on it."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.parameters import whole
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.refusals import NO_TASK
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.api.routes.task_views import NOON_MS
from codeq_cluster.auth import Access
from codeq_cluster.core.bounds import NUMBER_MAX
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.log_line import LINES_MAX

ROUTES = Routes(__name__, __doc__, Access.TENANT)

_AFTER = whole("after", "Only lines with greater numbers.", least=0, most=NUMBER_MAX, default=0)
_LIMIT = whole("limit", "Maximum number of lines.", least=1, most=LINES_MAX, default=LINES_MAX)


class LogLineView(Struct):
    """A line; its number is its place among all lines of the task, from 1.

    `at` is when the broker got it, `attempt` the delivery that it is of.
    """

    number: int
    at: str
    attempt: int
    text: str


class LogView(Struct):
    """Lines of a task's log, the oldest first.

    The task has got `written` lines in all; `dropped` of them are gone. A line with the number
    `written` is the last one: ask again after it.
    """

    lines: list[LogLineView]
    written: int
    dropped: int


@ROUTES(
    "GET",
    "/tasks/{id}/log",
    Answer(
        "The next lines; none if there are no more yet.",
        LogView([LogLineView(41, rfc3339(NOON_MS), 2, "page 3 of 10 is slow")], 41, dropped=0),
    ),
    parameters=(_AFTER, _LIMIT),
    errors=(NO_TASK,),
)
async def log(call: Call) -> HttpAnswer[LogView]:
    """Return lines of a task's log."""
    count = _LIMIT.read(call) or LINES_MAX
    found = await call.services.broker.logs.of(
        caller(call),
        call.task_id(not_found=NO_TASK),
        after=_AFTER.read(call) or 0,
        count=count,
    )
    if found is None:
        raise NO_TASK
    lines = [
        LogLineView(each.number, rfc3339(each.at_ms), each.attempt, each.text)
        for each in found.lines
    ]
    return reply(LogView(lines, found.written, found.dropped))
