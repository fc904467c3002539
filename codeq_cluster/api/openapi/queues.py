"""Queues: the requests and answers of the handlers of queues and of their topics."""

from __future__ import annotations

from codeq_cluster.api.http.errors import from_failure
from codeq_cluster.api.http.refusals import INVALID_COMMAND
from codeq_cluster.api.openapi.examples import COMMAND, NOON_MS
from codeq_cluster.api.openapi.parameters import PAGE, PAGED, query
from codeq_cluster.api.openapi.types import (
    BodyFields,
    DescribedAnswer,
    DescribedBody,
    DescribedOperation,
    Fields,
    Operations,
    said,
)
from codeq_cluster.api.routes import queues, topics
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.item_views import TopicPage, topic_view
from codeq_cluster.api.schemas.queue_views import PausedQueue, QueueView
from codeq_cluster.core.administering import PAUSES_MAX, TOPICS_MAX
from codeq_cluster.core.items import TIER_MAX, TIERS_MAX, Topic
from codeq_cluster.errors import TooMany

_QUEUE = QueueView(
    command=COMMAND, ready=12, delayed=3, in_progress=4, dlq=0, oldest_ready_seconds=7
)
_TOPIC = topic_view(
    Topic(
        tenant="acme",
        id=COMMAND,
        name=COMMAND,
        version=2,
        priority_tiers=(0, 5, 9),
        max_attempts=5,
        dead_letter="images-dead",
        retention_s=3600,
        max_consumers=20,
        weight=3,
        created_ms=NOON_MS,
        updated_ms=NOON_MS + 30 * 60_000,
    )
)
_TURNED = "The state of the queue on every shard; `changed` is false if it was so before."
_POLICY_REFUSED = (
    topics.unknown_field("owner"),
    topics.TIERS_COUNT,
    topics.TIERS_RANGE,
    topics.TIERS_REPEAT,
    *topics.OUT_OF_BOUNDS.values(),
    topics.NO_LABEL,
    topics.OWN_DEAD_LETTERS,
)
_BOUNDS = {
    name: {"minimum": least, "maximum": most} for name, (least, most) in topics.BOUNDS.items()
}

OPERATIONS: Operations = {
    queues.queues: DescribedOperation(DescribedAnswer("The queues, by name.", [_QUEUE])),
    queues.queue: DescribedOperation(DescribedAnswer("The queue.", _QUEUE)),
    queues.pause: DescribedOperation(
        DescribedAnswer(_TURNED, PausedQueue(COMMAND, paused=True, changed=True)),
        errors=(INVALID_COMMAND, from_failure(TooMany("paused queues", PAUSES_MAX))),
    ),
    queues.resume: DescribedOperation(
        DescribedAnswer(_TURNED, PausedQueue(COMMAND, paused=False, changed=True)),
        errors=(INVALID_COMMAND,),
    ),
    topics.topics: DescribedOperation(
        DescribedAnswer("A page.", TopicPage([_TOPIC])), parameters=PAGE, errors=PAGED
    ),
    topics.topic: DescribedOperation(
        DescribedAnswer("The topic.", _TOPIC),
        errors=(topics.BAD_NAME, topics.topic_not_found(_TOPIC.topic_id)),
    ),
    topics.put: DescribedOperation(
        DescribedAnswer("The topic, changed or already the same.", _TOPIC),
        DescribedAnswer("The topic is new.", _TOPIC, status=201),
        body=DescribedBody(requests.TopicBody, _TOPIC.policy),
        errors=(topics.BAD_NAME, *_POLICY_REFUSED, from_failure(TooMany("topics", TOPICS_MAX))),
    ),
    topics.delete: DescribedOperation(
        DescribedAnswer("The topic is deleted.", status=204),
        parameters=(query("deletionPolicy", "Must be `Delete`.", required=True, enum=["Delete"]),),
        errors=(topics.POLICY_REQUIRED, topics.BAD_NAME),
    ),
}

FIELDS: BodyFields = {
    requests.TopicBody: Fields(
        known={
            "priorityTiers": said(
                "Priorities that a new task of the command may have, any when absent; 10 means 9. "
                "Existing tasks keep theirs.",
                minItems=1,
                maxItems=TIERS_MAX,
                uniqueItems=True,
                items={"type": "integer", "minimum": 0, "maximum": TIER_MAX},
            ),
            "maxAttempts": said(
                "Default and upper bound of a new task's `maxAttempts`.", **_BOUNDS["maxAttempts"]
            ),
            "deadLetterTopicRef": said(
                "Another queue, in which the command's dead letters are kept.",
                pattern=f"^{topics.LABEL.pattern}$",
            ),
            "retentionSeconds": said(
                "Time from a task's end to its deletion; 0 for the broker's default.",
                **_BOUNDS["retentionSeconds"],
            ),
            "maxConsumers": said(
                "Most tasks of the queue in progress at once in the cluster; 0 for no limit.",
                **_BOUNDS["maxConsumers"],
            ),
            "weight": said(
                "Share of the queue in claims from several queues.", **_BOUNDS["weight"]
            ),
        },
        strict=True,
    )
}
