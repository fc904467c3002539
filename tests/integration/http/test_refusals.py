"""Refusals: a shared error object keeps nothing of the requests it answered."""

from __future__ import annotations

import pytest

from codeq_cluster.api.http import refusals
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.routes import dead_letters, imports, results
from codeq_cluster.ui import sessions
from tests.integration.http.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

BAD_TASK = b'{"tasks":[{"command":"no spaces","payload":1}]}'
BAD_SCHEDULE = b'{"every":"1m","task":{"command":"no spaces","payload":1}}'
BAD_SET = b'{"schedules":[{"id":"daily",' + BAD_SCHEDULE[1:] + b"]}"
BAD_THEN = b'{"then":{"command":"no spaces","payload":1}}'
BAD_RESULT = b'{"results":[{"taskId":"t","status":"FAILED","error":"e","leaseToken":%d}]}' % (
    10**30
)
DEAD = "admin/queues/c/dlq"


@pytest.mark.parametrize(
    ("refusal", "method", "path", "body"),
    [
        (refusals.NO_TASK, "GET", "tasks/none", b""),
        (refusals.INVALID_COMMAND, "POST", "tasks", b'{"command":"no spaces","payload":1}'),
        (refusals.INVALID_COMMAND, "POST", "tasks/batch", BAD_TASK),
        (results.RESULT_SCHEMA.unreadable, "POST", "tasks/batch/results", BAD_RESULT),
        (dead_letters.EMPTY_ERROR, "POST", f"{DEAD}/requeue", b'{"error":""}'),
        (imports.INVALID_BACKUP, "POST", "admin/import", b""),
        (refusals.INVALID_COMMAND, "PUT", "admin/schedules/daily", BAD_SCHEDULE),
        (refusals.INVALID_COMMAND, "PUT", "admin/schedules?owner=shop", BAD_SET),
        (refusals.INVALID_COMMAND, "POST", "groups", BAD_THEN),
        (refusals.INVALID_COMMAND, "POST", "groups", BAD_TASK),
        (refusals.INVALID_COMMAND, "POST", "tasks/graph", BAD_TASK),
    ],
)
async def test_a_refused_request_is_not_kept_in_memory(
    node: Client, refusal: ApiError, method: str, path: str, body: bytes
) -> None:
    """The traceback of a raised error would keep the frames of its request alive."""
    answer = await node.send(method, path, body)

    assert refusal.text.encode() in answer.body
    assert refusal.__traceback__ is None


async def test_an_asker_without_a_session_is_not_kept_in_memory(node: Client) -> None:
    """Anybody may ask for the session's user, any number of times."""
    answer = await node.get("/ui/api/session", token="")

    assert b"null" == answer.body
    assert sessions._NO_SESSION.__traceback__ is None


GOOD = b'{"command":"c","payload":1}'
BAD = b'{"command":"no spaces","payload":1}'


@pytest.mark.parametrize(
    ("method", "path", "body", "of"),
    [
        ("POST", "tasks/graph", b'{"tasks":[%b,%b]}' % (GOOD, BAD), "tasks[1]"),
        ("POST", "tasks/graph", b'{"tasks":[%b,7]}' % GOOD, "tasks[1]"),
        ("POST", "groups", b'{"tasks":[%b,%b,%b]}' % (GOOD, GOOD, BAD), "tasks[2]"),
        ("POST", "groups", b'{"then":%b}' % BAD, "then"),
        (
            "POST",
            "tasks/t/result",
            b'{"status":"COMPLETED","result":1,"next":[%b,%b]}' % (GOOD, BAD),
            "next[1]",
        ),
        ("PUT", "admin/schedules?owner=shop", BAD_SET, "schedules[0].task"),
    ],
)
async def test_the_refusal_of_several_tasks_says_of_which_it_is(
    node: Client, method: str, path: str, body: bytes, of: str
) -> None:
    """Its words alone would leave a caller to look for the wrong one among a thousand."""
    answer = await node.send(method, path, body)

    assert 400 == answer.status
    assert of == answer.json["field"]
    assert of.rpartition(".")[2] in answer.json["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "detail"),
    [
        ("POST", "tasks/t/park", b'{"step":"s","signal":""}', "1 to 128"),
        (
            "PUT",
            "admin/schedules/daily",
            b'{"every":"1m","owner":"","task":%b}' % GOOD,
            "owner: use ",
        ),
        (
            "POST",
            "tasks",
            b'{"command":"c","payload":1,"unique":{"key":"k","throttleSeconds":0}}',
            "throttleSeconds: use 1 to ",
        ),
    ],
)
async def test_a_text_or_number_without_the_form_that_is_declared_is_refused(
    node: Client, method: str, path: str, body: bytes, detail: str
) -> None:
    """An empty text is none of the pattern, and is not the same as an absent one."""
    answer = await node.send(method, path, body)

    assert 400 == answer.status
    assert detail in answer.json["detail"]
