"""Dead letters: the requests and answers of their handlers."""

from __future__ import annotations

from codeq_cluster.api.http.call import COMMAND
from codeq_cluster.api.http.refusals import (
    INVALID_COMMAND,
    TASK_NOT_FOUND,
    no_integer,
    too_high,
    too_low,
    too_many,
)
from codeq_cluster.api.openapi.examples import DEAD, DEAD_RESULT
from codeq_cluster.api.openapi.parameters import (
    CURSOR,
    DRY_RUN,
    ERROR,
    NO_DRY_RUN,
    PAGE,
    PAGED,
    query,
)
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
from codeq_cluster.api.routes import dead_letters
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.dead_letter_views import DeadLetters, Deleted, Requeued
from codeq_cluster.api.schemas.task_views import TaskAndResult
from codeq_cluster.broker.requests.dead_letters import BULK_MAX

IDS_REFUSED = (dead_letters.INVALID_IDS, too_many("ids", dead_letters.IDS_MAX))
# A task's command has the form of any command.
IDS = {"minItems": 1, "maxItems": dead_letters.IDS_MAX, "items": COMMAND_SCHEMA}

_SELECTION = DescribedBody(
    requests.SelectionBody, {"error": DEAD.error, "limit": 100, "dryRun": True}, may_miss=True
)
_SELECTED_BY = (
    query(
        "ids",
        "Ids separated by commas. A field of the body overrides its parameter.",
        pattern=f"^{COMMAND.pattern}(,{COMMAND.pattern})*$",
    ),
    query("error", ERROR.text, minLength=1),
    query(
        "limit",
        "Maximum number of tasks; the newest are taken.",
        type="integer",
        minimum=1,
        maximum=BULK_MAX,
    ),
    DRY_RUN,
)
_SELECTION_REFUSED = (
    dead_letters.EMPTY_ERROR,
    INVALID_COMMAND,
    *IDS_REFUSED,
    no_integer("limit"),
    too_low("limit", 1),
    too_high("limit", BULK_MAX),
    NO_DRY_RUN,
    dead_letters.unknown_name("id"),
)
_ONE_REFUSED = (INVALID_COMMAND, TASK_NOT_FOUND, NO_DRY_RUN)
_TOLD = "How many were found and how many of them were {}; `more` if some are left."
_REQUEUED = DescribedAnswer(
    _TOLD.format("requeued"),
    Requeued(matched=2, requeued=2, by_error={DEAD.error: 2}, more=False, dry_run=False),
)
_DELETED = DescribedAnswer(
    _TOLD.format("deleted"),
    Deleted(matched=2, deleted=2, by_error={DEAD.error: 2}, more=False, dry_run=False),
)

OPERATIONS: Operations = {
    dead_letters.dead_letters: DescribedOperation(
        DescribedAnswer("A page, or the groups.", DeadLetters(tasks=[DEAD], cursor=CURSOR)),
        parameters=(
            query("groupBy", "`error` returns the causes with counts instead.", enum=["error"]),
            ERROR,
            *PAGE,
        ),
        errors=(INVALID_COMMAND, dead_letters.INVALID_GROUP_BY, *PAGED),
    ),
    dead_letters.dead_letter: DescribedOperation(
        DescribedAnswer("The dead letter.", TaskAndResult(DEAD, DEAD_RESULT)),
        errors=(INVALID_COMMAND, TASK_NOT_FOUND),
    ),
    dead_letters.requeue: DescribedOperation(
        _REQUEUED, body=_SELECTION, parameters=_SELECTED_BY, errors=_SELECTION_REFUSED
    ),
    dead_letters.delete: DescribedOperation(
        _DELETED, body=_SELECTION, parameters=_SELECTED_BY, errors=_SELECTION_REFUSED
    ),
    dead_letters.requeue_one: DescribedOperation(
        _REQUEUED, parameters=(DRY_RUN,), errors=_ONE_REFUSED
    ),
    dead_letters.delete_one: DescribedOperation(
        _DELETED, parameters=(DRY_RUN,), errors=_ONE_REFUSED
    ),
}

FIELDS: BodyFields = {
    requests.SelectionBody: Fields(
        known={
            "ids": said("Only these tasks; absent for all.", **IDS),
            "error": said(ERROR.text, minLength=1),
            "limit": said(
                f"Maximum number of tasks, {BULK_MAX} when absent; the newest are taken.",
                minimum=1,
                maximum=BULK_MAX,
            ),
            "dryRun": said("Count the tasks and change nothing."),
        },
        strict=True,
    )
}
