"""Keys: the keys of a queue, and what an admin says of one of them."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import from_failure
from codeq_cluster.api.http.refusals import INVALID_COMMAND, invalid_field
from codeq_cluster.api.routes.flows import (
    TOO_EARLY,
    RateView,
    rate_field,
    rate_view,
    read_rate,
    unknown_field,
)
from codeq_cluster.api.routes.lanes import INVALID_KEY
from codeq_cluster.api.routes.listing import LIMIT, asked_page, caller
from codeq_cluster.auth import Access
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.lane import KEY_RULES_MAX, RUNNING_MAX, WEIGHT_MAX, Lane, OwnRule
from codeq_cluster.core.task import LANE_KEY_BYTES_MAX
from codeq_cluster.errors import TooMany

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

_RUNNING = invalid_field("maxRunning", f"must be between 1 and {RUNNING_MAX}")
_WEIGHT = invalid_field("weight", f"must be between 1 and {WEIGHT_MAX}")


class KeyBody(Body):
    """What one key has of its own, beside the rule of its queue's keys."""

    max_running: int | None = field(
        "Most tasks of the key in progress at once, in place of the topic's `perKey`; that when "
        "absent.",
        ge=1,
        le=RUNNING_MAX,
        refused=(_RUNNING,),
    )
    rate: Raw = rate_field(
        "How often its tasks may be claimed, in place of the topic's `perKey`; that when absent."
    )
    weight: int | None = field(
        "Its turns in a round of the queue's keys, 1 when absent: so many of its tasks may be "
        "ready at once. A key with a rate has one.",
        ge=1,
        le=WEIGHT_MAX,
        refused=(_WEIGHT,),
    )
    paused: bool | None = field("Whether nothing of the key goes, until this is said again.")


_KEY = Schema(KeyBody, refusal="invalid request body", unknown=unknown_field())


class OwnView(Struct, rename="camel", kw_only=True):
    """What a key has of its own; the topic's `perKey` says the rest."""

    weight: int
    paused: bool
    max_running: int | UnsetType = UNSET
    rate: RateView | UnsetType = UNSET


class KeyView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A key of a queue, and how many of its tasks are in which state.

    `backingOff` are those that keep their place while they back off; `stoppedBy` is the dead letter
    that stops the key; the next task may go at `limitedUntil`, if the rate of its key allows none
    before, or at `heldUntil`, if a worker has held the key; `own` is what an admin has said of it.
    """

    key: str
    in_progress: int
    ready: int
    held: int
    backing_off: int = 0
    stopped_by: str = ""
    limited_until: str = ""
    held_until: str = ""
    own: OwnView | UnsetType = UNSET


class KeysView(Struct, kw_only=True):
    """The busiest keys; `more` if the queue has so many that not all were looked at."""

    keys: list[KeyView]
    more: bool


_OWN = OwnView(weight=1, paused=False, max_running=5)
_VIEW = KeyView(key="ann", in_progress=1, ready=0, held=7)
_NAMED = (INVALID_COMMAND, INVALID_KEY)


@ROUTES(
    "GET",
    "/admin/queues/{command}/keys",
    Answer("The keys, those with the most held tasks first.", KeysView(keys=[_VIEW], more=False)),
    parameters=(LIMIT,),
    errors=(INVALID_COMMAND,),
)
async def keys(call: Call) -> HttpAnswer[KeysView]:
    """Return the busiest keys of a queue.

    These are keys with tasks that have not ended, or with a rule of their own.
    """
    asked, queue = asked_page(call), call.command().lower()
    lanes, more = await call.services.broker.operators.keys(caller(call), queue, count=asked.count)
    return reply(KeysView(keys=list(map(_key_view, lanes)), more=more))


@ROUTES("GET", "/admin/queues/{command}/keys/{key}", Answer("The key.", _VIEW), errors=_NAMED)
async def get(call: Call) -> HttpAnswer[KeyView]:
    """Return one key of a queue; one that was never used has no tasks."""
    queue, key = call.command().lower(), _key(call)
    lane = await call.services.broker.queue_policies.key(caller(call), queue, key)
    return reply(_key_view(lane))


@ROUTES(
    "PUT",
    "/admin/queues/{command}/keys/{key}",
    Answer("What the key has of its own now.", _OWN),
    body=_KEY,
    example={"maxRunning": 5},
    errors=(
        *_NAMED,
        TOO_EARLY,
        from_failure(TooMany("keys with rules of their own", KEY_RULES_MAX)),
    ),
)
async def put(call: Call) -> HttpAnswer[OwnView]:
    """Give one key of a queue its own limits, or pause it; its tasks follow at once.

    Fields that the body lacks are those of the topic again. Without a `flow.perKey` of the topic it
    has no effect, until there is one. Once the queue has got a limit of its own or shares one, say
    it again: its new tasks are on one shard since. A tenant has at most 10,000 of these keys on
    each shard.
    """
    queue, key = call.command().lower(), _key(call)
    body = _KEY.decode(call.text)
    own = OwnRule(
        max_running=body.max_running or 0,
        rate=read_rate(body.rate),
        weight=body.weight or 1,
        paused=bool(body.paused),
    )
    TOO_EARLY.check(call)
    await call.services.broker.queue_policies.set_key(caller(call), queue, key, own)
    return reply(_own_view(own))


@ROUTES(
    "DELETE",
    "/admin/queues/{command}/keys/{key}",
    Answer("The key follows the rule of its topic.", status=204),
    errors=(*_NAMED, TOO_EARLY),
)
async def delete(call: Call) -> HttpAnswer[None]:
    """Let a key follow the rule of its topic again; no task is deleted.

    A key without limits of its own counts as done.
    """
    queue, key = call.command().lower(), _key(call)
    TOO_EARLY.check(call)
    await call.services.broker.queue_policies.set_key(caller(call), queue, key, None)
    return HttpAnswer(status=204)


def _key(call: Call) -> str:
    key = call.segment("key")
    if len(key.encode()) > LANE_KEY_BYTES_MAX:
        raise INVALID_KEY
    return key


def _key_view(lane: Lane) -> KeyView:
    return KeyView(
        key=lane.key,
        in_progress=lane.running,
        ready=lane.ready,
        held=lane.held,
        backing_off=lane.kept,
        stopped_by=lane.stopped_by,
        limited_until=rfc3339(lane.limited_until_ms) if lane.limited_until_ms else "",
        held_until=rfc3339(lane.held_until_ms) if lane.held_until_ms else "",
        own=_own_view(lane.own) if lane.own is not None else UNSET,
    )


def _own_view(own: OwnRule) -> OwnView:
    return OwnView(
        weight=own.weight,
        paused=own.paused,
        max_running=own.max_running or UNSET,
        rate=rate_view(own.rate) if own.rate is not None else UNSET,
    )
