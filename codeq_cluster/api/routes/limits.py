"""Limits: bounds that several queues share, such as the quota of one API."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, from_failure, from_rejection
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import invalid_field
from codeq_cluster.api.routes.flows import RateView, rate_field, rate_view, read_rate, unknown_field
from codeq_cluster.api.routes.listing import PAGE, caller, listed
from codeq_cluster.api.routes.task_views import NOON_MS
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.queue_policies import too_many
from codeq_cluster.codec.levels import KEYS_FROM
from codeq_cluster.core.bounds import COMMAND_WORDS, is_queue_name
from codeq_cluster.core.gate import IN_PROGRESS_MAX, PerQueue
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.limit import Limit
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.spreading import RULED

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

BAD_NAME = invalid_field("name", f"must be {COMMAND_WORDS}, other than . and ..")
TOO_EARLY = TooEarly(KEYS_FROM, "a limit needs")
_RUNNING = invalid_field("maxRunning", f"must be between 1 and {IN_PROGRESS_MAX}")
_NO_RULE = ApiError(422, "a limit needs 'maxRunning', 'rate' or both", "invalid-limit")


class LimitBody(Body):
    """The rule of all tasks of the queues that name the limit: `maxRunning`, `rate`, or both."""

    max_running: int | None = field(
        "Most of these tasks in progress at once, exactly; any number when absent.",
        ge=1,
        le=IN_PROGRESS_MAX,
        refused=(_RUNNING, _NO_RULE),
    )
    rate: Raw = rate_field(
        "How often these tasks may be claimed; as often as they can be when absent."
    )


_LIMIT = Schema(LimitBody, refusal="invalid request body", unknown=unknown_field())


class LimitView(Struct, rename="camel", kw_only=True):
    """A limit.

    One that is asked for by name shows which `queues` share it and how many of their tasks are in
    progress (`running`); its rate gives the next token at `limitedUntil`, if there is none now, and
    a worker holds it until `heldUntil`.
    """

    name: str
    version: int
    created_at: str
    updated_at: str
    max_running: int | UnsetType = UNSET
    rate: RateView | UnsetType = UNSET
    queues: Sequence[str] | UnsetType = UNSET
    running: int | UnsetType = UNSET
    limited_until: str | UnsetType = UNSET
    held_until: str | UnsetType = UNSET


class LimitPage(Struct):
    """A page of a list; the cursor is missing at its end."""

    limits: Sequence[LimitView]
    cursor: str | UnsetType = UNSET


def limit_view(limit: Limit) -> LimitView:
    """Render a limit."""
    return LimitView(
        name=limit.name,
        version=limit.version,
        created_at=rfc3339(limit.created_ms),
        updated_at=rfc3339(limit.updated_ms),
        max_running=limit.rule.max_running or UNSET,
        rate=rate_view(limit.rule.rate) if limit.rule.rate is not None else UNSET,
    )


def _not_found(name: str) -> ApiError:
    return ApiError(404, f'limit "{name}" not found', "not-found")


_EXAMPLE = limit_view(
    Limit(
        tenant="acme",
        id="stripe",
        name="stripe",
        rule=PerQueue(max_running=20),
        rule_seq=1,
        created_ms=NOON_MS,
        updated_ms=NOON_MS,
    )
)


@ROUTES("GET", "/admin/limits", Answer("A page.", LimitPage([_EXAMPLE])), parameters=PAGE)
async def limits(call: Call) -> HttpAnswer[LimitPage]:
    """Return the tenant's limits by name."""
    found, cursor = await listed(call, Limit)
    return reply(LimitPage(list(map(limit_view, found)), cursor))


@ROUTES(
    "GET",
    "/admin/limits/{name}",
    Answer("The limit.", _EXAMPLE),
    errors=(BAD_NAME, _not_found("stripe")),
)
async def get(call: Call) -> HttpAnswer[LimitView]:
    """Return a limit, and what the queues that share it do now."""
    name = _name(call)
    state = await call.services.broker.queue_policies.limit(caller(call), name)
    if state is None:
        raise _not_found(name)
    view, gate = limit_view(state.limit), state.gate
    view.queues, view.running = state.queues, state.running
    if gate is not None and gate.opens_ms:
        view.limited_until = rfc3339(gate.opens_ms)
    if gate is not None and gate.held_until_ms:
        view.held_until = rfc3339(gate.held_until_ms)
    return reply(view)


@ROUTES(
    "PUT",
    "/admin/limits/{name}",
    Answer("The limit, changed or already the same.", _EXAMPLE),
    Answer("The limit is new.", _EXAMPLE, status=201),
    body=_LIMIT,
    example={"maxRunning": 20},
    errors=(BAD_NAME, TOO_EARLY, *map(from_failure, map(too_many, ("limits", RULED)))),
)
async def put(call: Call) -> HttpAnswer[LimitView]:
    """Create or change a limit; repeating the request changes nothing.

    Queues share it once their topics name it (`flow.limit`), at most 64 of them; then all their new
    tasks are on one shard. The answer comes once every shard's leader applies it.
    """
    name, body = _name(call), _LIMIT.decode(call.text)
    rule = PerQueue(max_running=body.max_running or 0, rate=read_rate(body.rate))
    if rule == PerQueue():
        raise _NO_RULE
    TOO_EARLY.check(call)
    stands = await call.services.broker.queue_policies.put_limit(caller(call), name, rule)
    return reply(limit_view(stands.limit), status=201 if stands.made else 200)


@ROUTES(
    "DELETE",
    "/admin/limits/{name}",
    Answer("The limit is deleted.", status=204),
    errors=(
        BAD_NAME,
        TOO_EARLY,
        from_rejection(Rejected(Rejection.LIMIT_IN_USE, "charge, refund")),
    ),
)
async def delete(call: Call) -> HttpAnswer[None]:
    """Delete a limit that no topic names; a missing one counts as deleted."""
    name = _name(call)
    TOO_EARLY.check(call)
    refused = await call.services.broker.queue_policies.delete_limit(caller(call), name)
    if refused is not None:
        raise from_rejection(refused)
    return HttpAnswer(status=204)


def _name(call: Call) -> str:
    name = call.request.match_info["name"]
    if not is_queue_name(name):
        raise BAD_NAME
    return name
