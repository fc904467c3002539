"""Topics: the policies that govern the queues of commands."""

from __future__ import annotations

import re

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import COMMAND, Call
from codeq_cluster.api.http.errors import ApiError, bad_request, invalid_body
from codeq_cluster.api.http.refusals import invalid_field
from codeq_cluster.api.routes.listing import listed
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.item_views import TopicPage, TopicView, topic_view
from codeq_cluster.core.items import TIER_MAX, TIERS_MAX, Topic

WEIGHT_MAX = 100
BOUNDS = {
    "maxAttempts": (1, 100),
    "retentionSeconds": (0, 2**31 - 1),
    "maxConsumers": (0, 10_000),
    "weight": (1, WEIGHT_MAX),
}

BAD_NAME = invalid_field("topicName", "must be a command: 1 to 128 of A-Za-z0-9._:-")
TIERS_COUNT = invalid_field("priorityTiers", f"must contain between 1 and {TIERS_MAX} priorities")
TIERS_RANGE = invalid_field(
    "priorityTiers", f"priorities must be integers from 0 through {TIER_MAX}"
)
TIERS_REPEAT = invalid_field("priorityTiers", "priorities must be unique")
OUT_OF_BOUNDS = {
    field: invalid_field(field, f"must be between {least} and {most}")
    for field, (least, most) in BOUNDS.items()
}
NO_LABEL = invalid_field("deadLetterTopicRef", "must be a DNS label with at most 63 characters")
OWN_DEAD_LETTERS = invalid_field("deadLetterTopicRef", "must differ from topicName")
POLICY_REQUIRED = bad_request("deletionPolicy=Delete is required", "deletion-policy-required")
_INVALID = invalid_body("invalid request body")
LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


async def topics(call: Call) -> HttpAnswer[TopicPage]:
    """Return the tenant's topics by name."""
    found, cursor = await listed(call, Topic)
    return reply(TopicPage(list(map(topic_view, found)), cursor))


async def topic(call: Call) -> HttpAnswer[TopicView]:
    """Return a topic."""
    name = _name(call)
    queue_policies = call.services.broker.queue_policies
    found = await queue_policies.topic(call.identity.tenant, name, timeout_s=call.timeout_s)
    if found is None:
        raise topic_not_found(f"{call.identity.tenant or '_'}.{name}")
    return reply(topic_view(found))


async def put(call: Call) -> HttpAnswer[TopicView]:
    """Create or change a topic; repeating the request changes nothing.

    The answer comes once every shard's leader applies it. Fields that the body lacks get the
    broker's defaults, even if an earlier version set them.
    """
    name = _name(call)
    body = requests.TOPIC.decode(call.text, error=_INVALID.text)
    unknown = requests.TOPIC.unknown(call.text)
    if unknown is not None:
        raise unknown_field(unknown)
    stands = await call.services.broker.queue_policies.put_topic(
        call.identity.tenant,
        name,
        _policy(call, name, body),
        by=call.identity.subject,
        timeout_s=call.timeout_s,
    )
    return reply(topic_view(stands.topic), status=201 if stands.made else 200)


async def delete(call: Call) -> HttpAnswer[None]:
    """Delete a topic; its queue gets the broker's defaults. A missing one counts as deleted.

    The query must say `deletionPolicy=Delete`. No task is deleted.
    """
    if call.query_text("deletionPolicy") != "Delete":
        raise POLICY_REQUIRED
    await call.services.broker.queue_policies.delete_topic(
        call.identity.tenant, _name(call), by=call.identity.subject, timeout_s=call.timeout_s
    )
    return HttpAnswer(status=204)


def _name(call: Call) -> str:
    name = call.request.match_info["name"]
    if not COMMAND.fullmatch(name):
        raise BAD_NAME
    return name


def _policy(call: Call, name: str, body: requests.TopicBody) -> Topic:
    tiers = _tiers(body.priority_tiers)
    return Topic(
        tenant=call.identity.tenant,
        id=name.lower(),
        name=name,
        priority_tiers=tiers,
        max_attempts=_number("maxAttempts", body.max_attempts, absent=0),
        dead_letter=_dead_letter(name, body.dead_letter_topic_ref),
        retention_s=_number("retentionSeconds", body.retention_seconds, absent=0),
        max_consumers=_number("maxConsumers", body.max_consumers, absent=0),
        weight=_number("weight", body.weight, absent=1),
    )


def _tiers(tiers: list[int] | None) -> tuple[int, ...]:
    if tiers is None:
        return ()
    if not 1 <= len(tiers) <= TIERS_MAX:
        raise TIERS_COUNT
    if not all(0 <= each <= TIER_MAX for each in tiers):
        raise TIERS_RANGE
    if len(set(tiers)) < len(tiers):
        raise TIERS_REPEAT
    return tuple(sorted(tiers))


def _number(field: str, value: int | None, *, absent: int) -> int:
    if value is None:
        return absent
    least, most = BOUNDS[field]
    if not least <= value <= most:
        raise OUT_OF_BOUNDS[field]
    return value


def _dead_letter(name: str, target: str | None) -> str:
    if target is None:
        return ""
    if not LABEL.fullmatch(target):
        raise NO_LABEL
    if target == name.lower():
        raise OWN_DEAD_LETTERS
    return target


def topic_not_found(topic_id: str) -> ApiError:
    """Return the 404 for a topic."""
    return ApiError(404, f'queue topic "{topic_id}" not found', "not-found")


def unknown_field(name: str) -> ApiError:
    """Return the 422 for a field that topics do not have."""
    return invalid_field(name[:64], "unknown field")
