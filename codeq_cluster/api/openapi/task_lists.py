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
            query("command", "Only tasks of this queue.", pattern=COMMAND_SCHEMA["pattern"]),
            query(
                "status",
                "Only tasks in this state.",
                enum=[status for status in task_lists.PLACES if status],
            ),
            ERROR,
            *PAGE,
        ),
        errors=(INVALID_COMMAND, INVALID_STATUS, *PAGED),
    ),
    task_lists.cleanup: DescribedOperation(
        DescribedAnswer(
            "The number of deleted tasks, and the bounds in force.",
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
                f"Maximum number of tasks: {task_lists.CLEANUP_DEFAULT} for 0 or less, never more "
                f"than {task_lists.CLEANUP_MAX}."
            ),
            "before": said(
                "Delete tasks that ended before this instant, even within their retention; RFC "
                "3339, not in the future. Absent: only tasks whose retention is over.",
                format="date-time",
            ),
        }
    )
}
