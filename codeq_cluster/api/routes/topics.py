"""Topics: the policies that govern the queues of commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.parameters import query
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure, from_rejection
from codeq_cluster.api.http.refusals import accepted, invalid_field
from codeq_cluster.api.routes.flows import (
    FIFO_TIERS,
    FLOW,
    TOO_EARLY,
    FlowView,
    flow_view,
    read_flow,
)
from codeq_cluster.api.routes.listing import PAGE, caller, listed
from codeq_cluster.api.routes.task_views import COMMAND, NOON_MS, read_handling, show_handling
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.queue_policies import too_many
from codeq_cluster.codec.levels import KEYS_FROM
from codeq_cluster.core import bounds
from codeq_cluster.core.backoff import POLICIES
from codeq_cluster.core.bounds import LABEL, is_queue_name
from codeq_cluster.core.handling import BOUNDS as HANDLING_BOUNDS
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import (
    CONSUMERS,
    RETENTION_S,
    TIER_MAX,
    TIERS_MAX,
    TOPIC_ATTEMPTS,
    WEIGHT,
    Topic,
)
from codeq_cluster.core.operations import PutTopic
from codeq_cluster.core.outcomes import Rejected, Rejection, TopicStands
from codeq_cluster.core.spreading import RULED

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

BAD_NAME = invalid_field("topicName", "must be a command: 1 to 128 of A-Za-z0-9._:-")
TIERS_COUNT = invalid_field("priorityTiers", f"must contain between 1 and {TIERS_MAX} priorities")
TIERS_RANGE = invalid_field(
    "priorityTiers", f"priorities must be integers from 0 through {TIER_MAX}"
)
TIERS_REPEAT = invalid_field("priorityTiers", "priorities must be unique")
NO_LABEL = invalid_field("deadLetterTopicRef", "must be a DNS label with at most 63 characters")
OWN_DEAD_LETTERS = invalid_field("deadLetterTopicRef", "must differ from topicName")
BAD_BACKOFF = invalid_field("backoffPolicy", f"must be one of {', '.join(POLICIES)}")
POLICY_REQUIRED = bad_request("deletionPolicy=Delete is required", "deletion-policy-required")


def _number(name: str, text: str, bounds: tuple[int, int]) -> Any:
    least, most = bounds
    refused = invalid_field(name, f"must be between {least} and {most}")
    return field(text, ge=least, le=most, refused=(refused,))


def _handling(name: str, text: str) -> Any:
    return _number(name, text, HANDLING_BOUNDS[name])


class TopicBody(Body):
    """The policy of a queue; absent fields get the broker's defaults."""

    priority_tiers: list[int] | None = field(
        "Priorities that a new task of the command may have, any when absent; "
        "10 means 9. Existing tasks keep theirs.",
        min_length=1,
        max_length=TIERS_MAX,
        uniqueItems=True,
        items={"type": "integer", "minimum": 0, "maximum": TIER_MAX},
        refused=(TIERS_COUNT, TIERS_RANGE, TIERS_REPEAT),
    )
    max_attempts: int | None = _number(
        "maxAttempts", "Default and upper bound of a new task's `maxAttempts`.", TOPIC_ATTEMPTS
    )
    dead_letter_topic_ref: str | None = field(
        "Another queue, in which the command's dead letters are kept.",
        pattern=LABEL,
        refused=(NO_LABEL, OWN_DEAD_LETTERS),
    )
    retention_seconds: int | None = _number(
        "retentionSeconds",
        "Time from a task's end to its deletion; 0 for the broker's default.",
        RETENTION_S,
    )
    max_consumers: int | None = _number(
        "maxConsumers",
        "Most tasks of the queue in progress at once in the cluster; 0 for no limit.",
        CONSUMERS,
    )
    weight: int | None = _number(
        "weight", "Share of the queue in claims from several queues.", WEIGHT
    )
    timeout_seconds: int | None = _handling(
        "timeoutSeconds", "Default and upper bound of a new task's `timeoutSeconds`."
    )
    backoff_policy: str | None = field(
        "How the delay after a nack grows with the attempts.",
        enum=[*POLICIES, None],
        refused=(BAD_BACKOFF,),
    )
    backoff_base_seconds: int | None = _handling("backoffBaseSeconds", "The delay it grows from.")
    backoff_max_seconds: int | None = _handling("backoffMaxSeconds", "The longest delay it gives.")
    flow: Raw = field(
        "The limits of the queue's tasks; none when absent.",
        default=Raw(b"{}"),
        inner=FLOW,
        refused=(FIFO_TIERS, TOO_EARLY),
    )


def _unknown_field(name: str, known: Sequence[str]) -> ApiError:  # noqa: ARG001, a schema gives it
    """Return the 422 for a field that topics do not have."""
    return invalid_field(name[:64], "unknown field")


_TOPIC = Schema(TopicBody, refusal="invalid request body", unknown=_unknown_field)


class PolicyView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The policy of a queue; missing fields have the broker's defaults."""

    priority_tiers: tuple[int, ...] = ()
    max_attempts: int = 0
    dead_letter_topic_ref: str = ""
    retention_seconds: int = 0
    max_consumers: int = 0
    weight: int
    timeout_seconds: int = 0
    backoff_policy: str = ""
    backoff_base_seconds: int = 0
    backoff_max_seconds: int = 0
    flow: FlowView | UnsetType = UNSET


class TopicView(PolicyView, rename="camel", omit_defaults=True, kw_only=True):
    """A topic; its policy's fields are beside its name, and in `policy` for codeQ's clients.

    `settling` if some tasks do not follow its flow yet. `draining` names the shards that still have
    tasks from before the queue had a limit, or shared one: until they are gone it holds
    approximately, a rate on each of these shards.
    """

    name: str
    version: int
    created_at: str
    updated_at: str
    topic_id: str
    topic_name: str
    tenant_id: str = ""
    policy: PolicyView
    settling: bool | UnsetType = UNSET
    draining: Sequence[int] | UnsetType = UNSET


class TopicPage(Struct):
    """A page of a list; the cursor is missing at its end."""

    topics: Sequence[TopicView]
    cursor: str | UnsetType = UNSET


def topic_view(topic: Topic, *, settling: bool = False, draining: Sequence[int] = ()) -> TopicView:
    """Render a topic; see `TopicView`."""
    policy = PolicyView(
        priority_tiers=topic.priority_tiers,
        max_attempts=topic.max_attempts,
        dead_letter_topic_ref=topic.dead_letter,
        retention_seconds=topic.retention_s,
        max_consumers=topic.max_consumers,
        weight=topic.weight,
        flow=flow_view(topic.per_key, topic.per_queue, topic.limit),
    )
    show_handling(policy, topic.handling)
    return TopicView(
        name=topic.name,
        version=topic.version,
        created_at=rfc3339(topic.created_ms),
        updated_at=rfc3339(topic.updated_ms),
        topic_id=f"{topic.tenant or '_'}.{topic.name}",
        topic_name=topic.name,
        tenant_id=topic.tenant,
        policy=policy,
        **asdict(policy),
        settling=settling or UNSET,
        draining=draining or UNSET,
    )


def topic_not_found(topic_id: str) -> ApiError:
    """Return the 404 for a topic."""
    return ApiError(404, f'queue topic "{topic_id}" not found', "not-found")


_EXAMPLE = topic_view(
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


@ROUTES("GET", "/admin/topics", Answer("A page.", TopicPage([_EXAMPLE])), parameters=PAGE)
async def topics(call: Call) -> HttpAnswer[TopicPage]:
    """Return the tenant's topics by name."""
    found, cursor = await listed(call, Topic)
    return reply(TopicPage(list(map(topic_view, found)), cursor))


@ROUTES(
    "GET",
    "/admin/topics/{name}",
    Answer("The topic.", _EXAMPLE),
    errors=(BAD_NAME, topic_not_found(_EXAMPLE.topic_id)),
)
async def topic(call: Call) -> HttpAnswer[TopicView]:
    """Return a topic."""
    name = _name(call)
    found = await call.services.broker.queue_policies.topic(caller(call), name)
    if found is None:
        raise topic_not_found(f"{call.identity.tenant or '_'}.{name}")
    return reply(await _with_state(call, found))


@ROUTES(
    "PUT",
    "/admin/topics/{name}",
    Answer("The topic, changed or already the same.", _EXAMPLE),
    Answer("The topic is new.", _EXAMPLE, status=201),
    body=_TOPIC,
    example=_EXAMPLE.policy,
    errors=(
        BAD_NAME,
        _unknown_field("owner", ()),
        *map(from_failure, map(too_many, ("topics", "queues of one limit", RULED))),
        from_rejection(Rejected(Rejection.KEYS_ELSEWHERE)),
        from_rejection(Rejected(Rejection.UNKNOWN_LIMIT, "stripe")),
        from_rejection(Rejected(Rejection.PINNED_ELSEWHERE, COMMAND)),
    ),
)
async def put(call: Call) -> HttpAnswer[TopicView]:
    """Create or change a topic; repeating the request changes nothing.

    The answer comes once every shard's leader applies it. Fields that the body lacks get the
    broker's defaults, even if an earlier version set them.
    """
    name = _name(call)
    if not is_queue_name(name):
        raise BAD_NAME
    body = _TOPIC.decode(call.text)
    policies, asked = call.services.broker.queue_policies, _operation(call, name, body)
    flow = read_flow(call, body.flow, tiers=len(asked.priority_tiers))
    stands: TopicStands | Rejected
    if call.services.broker.level() >= KEYS_FROM:
        stands = await policies.put_flow(
            caller(call), asked, flow.per_key, flow.per_queue, limit=flow.limit
        )
    else:
        stands = await policies.put_topic(caller(call), asked)
    put = accepted(stands)
    return reply(await _with_state(call, put.topic), status=201 if put.made else 200)


@ROUTES(
    "DELETE",
    "/admin/topics/{name}",
    Answer("The topic is deleted.", status=204),
    parameters=(
        query(
            "deletionPolicy", "Must be `Delete`.", POLICY_REQUIRED, required=True, enum=["Delete"]
        ),
    ),
    errors=(BAD_NAME,),
)
async def delete(call: Call) -> HttpAnswer[None]:
    """Delete a topic; its queue gets the broker's defaults. A missing one counts as deleted.

    The query must say `deletionPolicy=Delete`. No task is deleted.
    """
    if call.query_text("deletionPolicy") != "Delete":
        raise POLICY_REQUIRED
    await call.services.broker.queue_policies.delete_topic(caller(call), _name(call))
    return HttpAnswer(status=204)


async def _with_state(call: Call, found: Topic) -> TopicView:
    policies = call.services.broker.queue_policies
    settling = await policies.is_settling(caller(call), found)
    return topic_view(
        found, settling=settling, draining=await policies.draining(caller(call), found)
    )


def _name(call: Call) -> str:
    name = call.request.match_info["name"].removeprefix("~")
    if not bounds.COMMAND.fullmatch(name):
        raise BAD_NAME
    return name


def _operation(call: Call, name: str, body: TopicBody) -> PutTopic:
    return PutTopic(
        tenant=call.identity.tenant,
        name=name,
        by=call.identity.subject,
        priority_tiers=_tiers(body.priority_tiers or []),
        max_attempts=body.max_attempts or 0,
        dead_letter=_dead_letter(name, body.dead_letter_topic_ref or ""),
        retention_s=body.retention_seconds or 0,
        max_consumers=body.max_consumers or 0,
        weight=body.weight or 1,
        handling=read_handling(body, lambda _, number: number or 0, _backoff),
    )


def _tiers(tiers: list[int]) -> tuple[int, ...]:
    if not all(0 <= each <= TIER_MAX for each in tiers):
        raise TIERS_RANGE
    if len(set(tiers)) < len(tiers):
        raise TIERS_REPEAT
    return tuple(sorted(tiers))


def _backoff(policy: str | None) -> str:
    if policy is not None and policy not in POLICIES:
        raise BAD_BACKOFF
    return policy or ""


def _dead_letter(name: str, target: str) -> str:
    if target == name.lower():
        raise OWN_DEAD_LETTERS
    return target
