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
