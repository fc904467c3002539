"""Steps: durable steps of a task's function, waits without a worker, and signals."""

from __future__ import annotations

from operator import attrgetter

from msgspec import Raw, Struct

from codeq_cluster.api.declared.bodies import Body, Schema, field, instant_ms, json_text, raw_field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure, from_rejection
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import (
    NO_TASK,
    NOT_FOUND,
    accepted,
    budget_exceeded,
    rate_limited,
    too_high,
)
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.api.routes.step_views import SignalView, StepView, signal_view, step_view
from codeq_cluster.api.routes.task_bodies import key_too_long
from codeq_cluster.api.routes.task_views import ANY_JSON, NOON_MS
from codeq_cluster.api.routes.tasks import CREATING
from codeq_cluster.api.routes.workers import (
    LEASE_TOKEN,
    LEASE_TOKEN_FIELD,
    NOT_HELD,
    lease_ms,
    lease_token,
)
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.producer import over_budget
from codeq_cluster.broker.values import new_request
from codeq_cluster.codec.levels import STEPS_FROM
from codeq_cluster.core.durable import (
    BOUNDS_OF,
    PARK_MS_MAX,
    SIGNAL_NAME,
    SIGNAL_NAME_WORDS,
    STEP_BYTES_MAX,
    STEP_NAME,
    STEP_NAME_BYTES_MAX,
    Park,
    RecordStep,
    SendSignal,
)
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.outcomes import Rejected, Rejection, StepStands
from codeq_cluster.errors import TooMany

ROUTES = Routes(__name__, __doc__, Access.WORKER)

PARK_S_MAX = PARK_MS_MAX // 1000
TOO_EARLY = TooEarly(STEPS_FROM, "durable steps need")
INVALID_STEP = bad_request("invalid step", "invalid-step").because(
    f"its name must have 1 to {STEP_NAME_BYTES_MAX} bytes"
)
INVALID_SIGNAL = bad_request("invalid name of a signal", "invalid-signal").because(
    f"use {SIGNAL_NAME_WORDS}"
)
INVALID_UNTIL = bad_request("invalid 'until' (use RFC3339)", "invalid-until")
INVALID_PARK = bad_request("invalid park", "invalid-park").because(
    "say until when it waits, by until or forSeconds, or for which signal"
)
STEP_CONFLICT = from_rejection(Rejected(Rejection.STEP_CONFLICT)).saying(
    "the task has recorded another step of this name; names must differ within a task"
)
STEP_TOO_LARGE = ApiError(413, f"a step exceeds {STEP_BYTES_MAX} bytes", "step-too-large")
_CONFLICT = from_rejection(Rejected(Rejection.IDEMPOTENCY_CONFLICT))
_ENDED = from_rejection(Rejected(Rejection.ALREADY_TERMINAL))
_TOO_MANY = {limit: from_failure(TooMany(*bound)) for limit, bound in BOUNDS_OF.items()}
_POSITION = "Its place among the steps that the function asks for, from 1; 0 if nobody counts."


class StepBody(Body):
    """A step to record."""

    name: str | None = field(
        f"Its name within the task, 1 to {STEP_NAME_BYTES_MAX} bytes.",
        required=True,
        refused=(INVALID_STEP,),
    )
    value: Raw = raw_field(
        "What it has returned: any JSON; null when absent. At most "
        f"{STEP_BYTES_MAX} bytes, nested at most {{node.limits.payload_depth_max}} deep.",
        refused=(STEP_TOO_LARGE,),
    )
    position: int | None = field(_POSITION, ge=0, le=2**31)
    extend_seconds: int | None = field(
        "Time from now to the new end of the lease, which never comes earlier by it; "
        "{node.lifecycle.default_lease_seconds} for 0 or less.",
        maximum=attrgetter("limits.lease_seconds_max"),
    )
    lease_token: Int64 | None = LEASE_TOKEN_FIELD


class ParkBody(Body):
    """A wait without a worker."""

    step: str | None = field(
        f"The name of the wait, which is a step as well: 1 to {STEP_NAME_BYTES_MAX} bytes.",
        required=True,
        refused=(INVALID_STEP,),
    )
    until: str | None = field(
        "When it ends. RFC 3339.", refused=(INVALID_UNTIL, INVALID_PARK), format="date-time"
    )
    for_seconds: int | None = field(
        "How long it lasts; either this or `until`. A wait for a signal without both lasts "
        f"{PARK_S_MAX // 86_400} days, the most that is possible.",
        ge=0,
        le=PARK_S_MAX,
    )
    signal: str | None = field(
        "The name of the signal that ends it, if that comes first.",
        pattern=SIGNAL_NAME,
        refused=(INVALID_SIGNAL,),
    )
    keep_key: bool | None = field(
        "The task keeps the place that it has among the tasks of its `key`; otherwise the next one "
        "may go, and this one comes first once its wait is over."
    )
    position: int | None = field(_POSITION, ge=0, le=2**31)
    extend_seconds: int | None = field(
        "If the wait is over already: as of a step.",
        maximum=attrgetter("limits.lease_seconds_max"),
    )
    lease_token: Int64 | None = LEASE_TOKEN_FIELD


class SignalBody(Body):
    """What a signal carries."""

    payload: Raw = raw_field(
        f"{ANY_JSON[:-1]}, or null, when absent, too. At most {STEP_BYTES_MAX} bytes.",
        refused=(STEP_TOO_LARGE,),
    )
    idempotency_key: str | None = field(
        "A second signal to the task with the same key is a retry, and changes nothing.",
        refused=(key_too_long, _CONFLICT),
    )


_STEP = Schema(StepBody)
_PARK = Schema(ParkBody)
_SIGNAL = Schema(SignalBody)


class RecordedStep(Struct, rename="camel"):
    """The step, as it stands, and the new end of the lease."""

    step: StepView
    lease_until: str


class ParkedTask(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The wait; if it is over already, the worker keeps its lease, and goes on."""

    parked: bool
    step: StepView
    lease_until: str = ""


class SentSignal(Struct):
    """The task has the signal; `replay` says that it had it before."""

    replay: bool


class StepsView(Struct):
    """What a task has recorded, in that order, and the signals to it, in that order."""

    steps: list[StepView]
    signals: list[SignalView]


_CHARGED = StepView(
    name="charge",
    position=1,
    value=Raw(b'{"charge":"ch_7"}'),
    recorded_at=rfc3339(NOON_MS),
)
_WAIT = StepView(
    name="return",
    position=2,
    recorded_at=_CHARGED.recorded_at,
    signal="return",
    until="2026-02-14T12:00:00.000Z",
    open=True,
)
_SENT = SignalView(name="return", payload=Raw(b'{"why":"too small"}'), sent_at=_WAIT.recorded_at)
_UNTIL = "2026-01-31T12:09:30.000Z"


@ROUTES(
    "POST",
    "/tasks/{id}/steps",
    Answer(
        "The step; a majority of the nodes has it.",
        RecordedStep(step=_CHARGED, lease_until=_UNTIL),
    ),
    scope="codeq:heartbeat",
    body=_STEP,
    example={"name": "charge", "value": {"charge": "ch_7"}, "position": 1},
    parameters=(LEASE_TOKEN,),
    errors=(
        lambda node: too_high("extendSeconds", node.limits.lease_seconds_max),
        NOT_FOUND,
        *NOT_HELD,
        STEP_CONFLICT,
        _TOO_MANY["steps"],
        _TOO_MANY["stepBytes"],
        TOO_EARLY,
    ),
    whole=True,
)
async def record(call: Call) -> HttpAnswer[RecordedStep]:
    """Record what a step of the task's function has returned, and extend the lease.

    Later deliveries get it in `steps` of their claim. A repetition with the same value changes
    nothing. A new step begins the count of attempts anew.
    """
    TOO_EARLY.check(call)
    body = _STEP.decode(call.text)
    operation = RecordStep(
        id=call.task_id(not_found=NOT_FOUND),
        tenant=call.identity.tenant,
        worker=call.identity.subject,
        name=_step_name(body.name),
        value=_json(call, body.value, "value"),
        position=body.position or 0,
        extend_ms=lease_ms(call, body.extend_seconds, "extendSeconds"),
        token=lease_token(call, body.lease_token),
    )
    stands = accepted(await call.services.broker.steps.record(caller(call), operation), _refusal)
    return reply(RecordedStep(step_view(stands.step), _lease_until(stands)))


@ROUTES(
    "POST",
    "/tasks/{id}/park",
    Answer("The wait.", ParkedTask(parked=True, step=_WAIT)),
    scope="codeq:heartbeat",
    body=_PARK,
    example={"step": "return", "signal": "return", "forSeconds": 1_209_600, "position": 2},
    parameters=(LEASE_TOKEN,),
    errors=(
        lambda node: too_high("extendSeconds", node.limits.lease_seconds_max),
        NOT_FOUND,
        *NOT_HELD,
        STEP_CONFLICT,
        from_rejection(Rejected(Rejection.CANCELLING)),
        _TOO_MANY["steps"],
        TOO_EARLY,
    ),
    whole=True,
)
async def park(call: Call) -> HttpAnswer[ParkedTask]:
    """Give a task back until an instant or a signal, whichever is first.

    No worker holds it meanwhile, and it costs no attempt. The next delivery finds in `steps` what
    has ended the wait. If that has happened already, the answer says so, and the lease goes on.
    """
    TOO_EARLY.check(call)
    body = _PARK.decode(call.text)
    until_ms = instant_ms(body.until, error=INVALID_UNTIL) if body.until else 0
    waits = (body.until, body.for_seconds)
    if None not in waits or not (body.signal or body.until or body.for_seconds is not None):
        raise INVALID_PARK
    operation = Park(
        id=call.task_id(not_found=NOT_FOUND),
        tenant=call.identity.tenant,
        worker=call.identity.subject,
        step=_step_name(body.step),
        signal=body.signal or "",
        # The instant before the first is over as well.
        until_ms=max(until_ms, 1) if body.until or body.for_seconds == 0 else 0,
        wait_ms=(body.for_seconds or 0) * 1000,
        keeps_key=body.keep_key or False,
        position=body.position or 0,
        extend_ms=lease_ms(call, body.extend_seconds, "extendSeconds"),
        token=lease_token(call, body.lease_token),
    )
    stands = accepted(await call.services.broker.steps.park(caller(call), operation), _refusal)
    return reply(
        ParkedTask(
            parked=stands.step.is_open,
            step=step_view(stands.step),
            lease_until=_lease_until(stands),
        )
    )


@ROUTES(
    "POST",
    "/tasks/{id}/signals/{signal}",
    Answer("The task has the signal; a majority of the nodes has it.", SentSignal(replay=False)),
    access=Access.PRODUCER,
    body=_SIGNAL,
    example={"payload": {"why": "too small"}, "idempotencyKey": "return-7"},
    may_miss=True,
    errors=(
        rate_limited(*CREATING),
        budget_exceeded("storedBytes", "signal"),
        NOT_FOUND,
        INVALID_SIGNAL,
        _ENDED,
        _TOO_MANY["unreadSignals"],
        _TOO_MANY["signals"],
        _TOO_MANY["signalBytes"],
        _TOO_MANY["stepBytes"],
        TOO_EARLY,
    ),
)
async def signal(call: Call) -> HttpAnswer[SentSignal]:
    """Send a signal to a task: it wakes one that waits for it, and is kept for a later wait.

    Each wait reads one signal of its name, the oldest. Signals go with their task.
    """
    TOO_EARLY.check(call)
    name = call.segment("signal")
    if not SIGNAL_NAME.fullmatch(name):
        raise INVALID_SIGNAL
    body = _SIGNAL.decode_any(call.text)
    key = body.idempotency_key or ""
    if len(key.encode()) > call.services.settings.limits.idempotency_key_bytes_max:
        raise key_too_long(call.services.settings)
    await call.spend(*CREATING)
    operation = SendSignal(
        request=new_request(),
        id=call.task_id(not_found=NOT_FOUND),
        tenant=call.identity.tenant,
        name=name,
        payload=_json(call, body.payload, "payload"),
        key=key,
    )
    sent = accepted(await call.services.broker.steps.signal(caller(call), operation), _refusal)
    return reply(SentSignal(sent.replay))


@ROUTES(
    "GET",
    "/tasks/{id}/steps",
    Answer("All of them.", StepsView([_CHARGED, _WAIT], [_SENT])),
    access=Access.TENANT,
    errors=(NO_TASK,),
)
async def steps(call: Call) -> HttpAnswer[StepsView]:
    """Return what a task's function has recorded, what it waits for, and the signals to it."""
    found = await call.services.broker.steps.of(caller(call), call.task_id(not_found=NO_TASK))
    if found is None:
        raise NO_TASK
    return reply(StepsView([*map(step_view, found.steps)], [*map(signal_view, found.signals)]))


def _lease_until(stands: StepStands) -> str:
    """Return the end of the lease, empty for a task that is parked."""
    return rfc3339(stands.lease_until_ms) if stands.lease_until_ms else ""


def _step_name(name: str | None) -> str:
    if name is None or STEP_NAME(name):
        raise INVALID_STEP
    return name


def _json(call: Call, value: Raw, name: str) -> str:
    """Return a value as the JSON text that was sent; null is one."""
    if len(bytes(value)) > STEP_BYTES_MAX:
        raise STEP_TOO_LARGE
    depth_max = call.services.settings.limits.payload_depth_max
    return json_text(value, name, depth_max=depth_max, error=_STEP.refusal) or "null"


def _refusal(rejected: Rejected) -> ApiError:
    match rejected.rejection:
        case Rejection.STEP_CONFLICT:
            return STEP_CONFLICT
        case Rejection.TOO_MANY:
            return _TOO_MANY[rejected.limit]
        case Rejection.BUDGET_EXCEEDED:
            return from_failure(over_budget(rejected, "signal"))
        case _:
            return from_rejection(rejected)
