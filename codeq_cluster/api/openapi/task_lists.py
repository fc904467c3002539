"""Task lists: the requests and answers of the handlers that list and clean up tasks."""

from __future__ import annotations

from codeq_cluster.api.http.refusals import INVALID_COMMAND, INVALID_STATUS
from codeq_cluster.api.openapi.examples import DEAD
from codeq_cluster.api.openapi.parameters import CURSOR, ERROR, PAGE, PAGED, query
from codeq_cluster.api.openapi.tasks import rate_limited
from codeq_cluster.api.openapi.types import (
    COMMAND_SCHEMA,
    BodyFields,
    DescribedAnswer,
    DescribedBody,
    DescribedOperation,
    Fields,
    Operations,
    said,
)
from codeq_cluster.api.routes import task_lists
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.task_views import CleanedUp, TaskPage

OPERATIONS: Operations = {
    task_lists.tasks: DescribedOperation(
        DescribedAnswer("A page.", TaskPage([DEAD], CURSOR)),
        parameters=(
            query("command", "Only this queue's.", pattern=COMMAND_SCHEMA["pattern"]),
            query("status", "Only these.", enum=[status for status in task_lists.PLACES if status]),
            ERROR,
            *PAGE,
        ),
        errors=(INVALID_COMMAND, INVALID_STATUS, *PAGED),
    ),
    task_lists.cleanup: DescribedOperation(
        DescribedAnswer(
            "What was done, with the bounds that held.",
            CleanedUp(deleted=17, before="2026-01-31T12:00:00.000Z", limit=100),
        ),
        body=DescribedBody(
            requests.CleanupBody, {"limit": 100, "before": "2026-01-31T12:00:00Z"}, may_miss=True
        ),
        errors=(
            task_lists.INVALID_BEFORE,
            task_lists.BEFORE_IN_FUTURE,
            rate_limited(*task_lists.CLEANING),
        ),
    ),
}

FIELDS: BodyFields = {
    requests.CleanupBody: Fields(
        known={
            "limit": said(
                f"Tasks at most: {task_lists.CLEANUP_DEFAULT} for 0 or less, never more than "
                f"{task_lists.CLEANUP_MAX}."
            ),
            "before": said(
                "Delete what ended before, kept or not; RFC 3339, not in the future. Absent: "
                "what is not to be kept any longer.",
                format="date-time",
            ),
        }
    )
}
