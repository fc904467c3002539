"""Flows: the limits of a queue's tasks, in the body of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema, chosen, field, raw_field
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import invalid_field
from codeq_cluster.codec.levels import KEYS_FROM
from codeq_cluster.core.bounds import COMMAND, COMMAND_WORDS
from codeq_cluster.core.gate import IN_PROGRESS_MAX, PerQueue
from codeq_cluster.core.lane import RUNNING_MAX, OnRetry, Order, PerKey, WhenDead
from codeq_cluster.core.rate import BURST_MAX, COUNT_MAX, PERIOD_S_MAX, Rate

_RULE = PerKey()

FIFO_TIERS = invalid_field(
    "flow.perKey.order", "must not be fifo unless priorityTiers has one priority"
)
TOO_EARLY = TooEarly(KEYS_FROM, "'flow' needs")
_IN_PROGRESS = invalid_field("flow.maxRunning", f"must be between 1 and {IN_PROGRESS_MAX}")
_LIMIT = invalid_field("flow.limit", f"must be the name of a limit: {COMMAND_WORDS}")
_RUNNING = invalid_field("flow.perKey.maxRunning", f"must be between 1 and {RUNNING_MAX}")


def unknown_field(where: str = "") -> Any:
    """Return what refuses an unknown field of an object that stands there."""

    def refused(name: str, known: Sequence[str]) -> ApiError:  # noqa: ARG001, a schema gives it
        return invalid_field(f"{where}{name[:64]}", "unknown field")

    return refused


def _none_of(name: str, words: Iterable[str]) -> ApiError:
    return invalid_field(f"flow.perKey.{name}", f"must be one of {', '.join(words)}")


def _choice(name: str, kind: type[StrEnum], text: str) -> Any:
    return field(text, enum=[*kind, None], refused=(_none_of(name, kind),))


def _number(name: str, text: str, most: int, *, required: bool = False) -> Any:
    refused = invalid_field(f"rate.{name}", f"must be between 1 and {most}")
    return field(text, ge=1, le=most, required=required, refused=(refused,))


class RateBody(Body):
    """How often tasks may be claimed, retries included."""

    count: int | None = _number(
        "count", "Tokens; a claim of a task spends its `cost`.", COUNT_MAX, required=True
    )
    per_seconds: int | None = _number(
        "perSeconds", "The time in which so many tokens come, evenly; 1 when absent.", PERIOD_S_MAX
    )
    burst: int | None = _number(
        "burst",
        "Tokens that are saved up without claims, 1 when absent. In any time at most `burst` "
        "tokens are spent beside those that came in it.",
        BURST_MAX,
    )


RATE = Schema(RateBody, refusal="invalid request body", unknown=unknown_field("rate."))
NO_COUNT = invalid_field("rate.count", "is required")


def rate_field(text: str) -> Any:
    """Declare a rate of claims, which `read_rate` reads."""
    return raw_field(text, inner=RATE, refused=(NO_COUNT,))


class PerKeyBody(Body):
    """The rule of each key of a queue's tasks."""

    max_running: int | None = field(
        f"Most tasks of one key in progress at once; {_RULE.max_running} when absent.",
        ge=1,
        le=RUNNING_MAX,
        refused=(_RUNNING,),
    )
    order: str | None = _choice(
        "order",
        Order,
        "Which task of a key goes next: the one with the highest `priority`, the default; or, "
        "first in, first out (`fifo`), the one that could run first. That needs one priority in "
        "`priorityTiers`.",
    )
    on_retry: str | None = _choice(
        "onRetry",
        OnRetry,
        "Whether a task that is given back keeps its place (`hold`, the default), or lets others "
        "pass (`yield`).",
    )
    when_dead: str | None = _choice(
        "whenDead",
        WhenDead,
        "Whether the `next` task of the key goes when one is a dead letter, the default, or the "
        "key must `stop` until that one is requeued or deleted.",
    )
    rate: Raw = rate_field(
        "How often tasks of one key may be claimed; as often as they can be when absent."
    )


PER_KEY = Schema(PerKeyBody, refusal="invalid request body", unknown=unknown_field("flow.perKey."))


class FlowBody(Body):
    """The limits of a queue's tasks.

    With `maxRunning`, `rate` or `limit`, all new tasks of the queue are on one shard from then on,
    also when these are taken away again.
    """

    max_running: int | None = field(
        "Most tasks of the queue in progress at once, exactly; any number when absent.",
        ge=1,
        le=IN_PROGRESS_MAX,
        refused=(_IN_PROGRESS,),
    )
    rate: Raw = rate_field(
        "How often tasks of the queue may be claimed; as often as they can be when absent."
    )
    per_key: Raw = raw_field(
        "The rule of each key; the `key` of a task says which.",
        inner=PER_KEY,
    )
    limit: str | None = field(
        "The limit that the queue shares with others that name it, beside its own; none when "
        "absent. It must exist.",
        pattern=f"^({COMMAND.pattern})?$",
        refused=(_LIMIT,),
    )


FLOW = Schema(FlowBody, refusal="invalid request body", unknown=unknown_field("flow."))


class RateView(Struct, rename="camel"):
    """How often tasks may be claimed."""

    count: int
    per_seconds: int
    burst: int


class PerKeyView(Struct, rename="camel"):
    """The rule of each key of a queue's tasks; without `rate` they may be claimed at any pace."""

    max_running: int
    order: Order
    on_retry: OnRetry
    when_dead: WhenDead
    rate: RateView | UnsetType = UNSET


class FlowView(Struct, rename="camel"):
    """The limits of a queue's tasks."""

    max_running: int | UnsetType = UNSET
    rate: RateView | UnsetType = UNSET
    per_key: PerKeyView | UnsetType = UNSET
    limit: str | UnsetType = UNSET


def flow_view(
    per_key: PerKey | None, per_queue: PerQueue | None, limit: str
) -> FlowView | UnsetType:
    """Render the rules of a queue and its keys, if there are any."""
    if per_key is None and per_queue is None and not limit:
        return UNSET
    view = FlowView(limit=limit or UNSET)
    if per_queue is not None:
        view.max_running = per_queue.max_running or UNSET
        view.rate = UNSET if per_queue.rate is None else rate_view(per_queue.rate)
    view.per_key = UNSET if per_key is None else _per_key_view(per_key)
    return view


def _per_key_view(rule: PerKey) -> PerKeyView:
    view = PerKeyView(rule.max_running, rule.order, rule.on_retry, rule.when_dead)
    if rule.rate is not None:
        view.rate = rate_view(rule.rate)
    return view


def rate_view(rate: Rate) -> RateView:
    """Render a rate."""
    return RateView(rate.count, rate.per_s, rate.burst)


class AskedFlow(NamedTuple):
    """What a topic's body asks for: the rules of a queue's keys and of the queue, and its limit."""

    per_key: PerKey | None
    per_queue: PerQueue | None
    limit: str


def read_flow(call: Call, item: Raw, *, tiers: int) -> AskedFlow:
    """Return what a topic's body asks for.

    Args:
        tiers: How many priorities its tasks may have; 0 for any.

    Raises:
        ApiError: One of them is not sound, or the cluster's formats are too old for any.
    """
    flow = FLOW.decode_any(bytes(item).decode())
    rate, per_queue = read_rate(flow.rate), None
    if flow.max_running is not None or rate is not None:
        per_queue = PerQueue(max_running=flow.max_running or 0, rate=rate)
    limit = flow.limit or ""
    if limit and not COMMAND.fullmatch(limit):
        raise _LIMIT
    if per_queue is not None or limit:
        TOO_EARLY.check(call)
    if bytes(flow.per_key) == b"null":
        return AskedFlow(None, per_queue, limit)
    body = PER_KEY.decode(flow.per_key)
    TOO_EARLY.check(call)
    order = chosen(Order, "order", body.order, _none_of) or _RULE.order
    if order is Order.FIFO and tiers != 1:
        # The first of a key would wait behind the higher priorities of other keys.
        raise FIFO_TIERS
    per_key = PerKey(
        max_running=body.max_running or _RULE.max_running,
        order=order,
        on_retry=chosen(OnRetry, "onRetry", body.on_retry, _none_of) or _RULE.on_retry,
        when_dead=chosen(WhenDead, "whenDead", body.when_dead, _none_of) or _RULE.when_dead,
        rate=read_rate(body.rate),
    )
    return AskedFlow(per_key, per_queue, limit)


def read_rate(item: Raw) -> Rate | None:
    """Return the rate that a body asks for, if there is one; raises ApiError."""
    if bytes(item) == b"null":
        return None
    body = RATE.decode(item)
    if body.count is None:
        raise NO_COUNT
    return Rate(body.count, body.per_seconds or 1, body.burst or 1)
