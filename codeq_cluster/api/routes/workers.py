"""Workers: claiming tasks, holding leases, ending them."""

from __future__ import annotations

from functools import partial
from operator import attrgetter

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema, field, whole
from codeq_cluster.api.declared.operations import COMMAND_SCHEMA, Answer, Routes
from codeq_cluster.api.declared.parameters import header
from codeq_cluster.api.declared.wide import INT64, Int64
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_rejection, invalid_body
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import (
    INVALID_COMMAND,
    NOT_ALLOWED,
    NOT_FOUND,
    accepted,
    budget_exceeded,
    rate_limited,
    too_high,
    too_many,
)
from codeq_cluster.api.http.waits import WaitEnded
from codeq_cluster.api.routes.reports import (
    checkpoint_field,
    log_field,
    progress_field,
    read_report,
)
from codeq_cluster.api.routes.step_views import step_view
from codeq_cluster.api.routes.task_views import (
    CANCEL,
    CLAIMED,
    CancelView,
    TaskView,
    cancel_view,
    show_inputs,
    task_view,
)
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.leases import HeldLease
from codeq_cluster.broker.values import new_request
from codeq_cluster.codec.levels import KEYS_FROM
from codeq_cluster.core.bounds import COMMAND, REASON_CHARS_MAX, WORKER_NAME
from codeq_cluster.core.holds import HOLDS, HoldOperation, Nack
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.operations import Abandon
from codeq_cluster.core.outcomes import Claimed, Rejected, Rejection, Returned
from codeq_cluster.core.task import Task, shown_as
from codeq_cluster.ratelimit.token_bucket import Scope
from codeq_cluster.settings import NodeSettings

# A wait ends this much early: a client whose timeout equals the wait must get its answer.
EARLY_S = 0.2
COMMANDS_MAX = 1000  # In one claim; each costs a look at its queue.

ROUTES = Routes(__name__, __doc__, Access.WORKER)

INVALID_TOKEN = bad_request("invalid 'X-CodeQ-Lease-Token' (use an integer)", "invalid-lease-token")
INVALID_NAME = bad_request(
    "invalid 'workerName' (use 1 to 128 of A-Za-z0-9._:@-)", "invalid-worker-name"
)

LEASE_TOKEN = header(
    "X-CodeQ-Lease-Token",
    "The claim's `leaseToken`, if the body does not have it.",
    INVALID_TOKEN,
    type="integer",
    **INT64,
)
# The task is not the caller's, or no longer.
NOT_HELD = tuple(
    from_rejection(Rejected(each))
    for each in (Rejection.NOT_OWNER, Rejection.NOT_IN_PROGRESS, Rejection.LEASE_LOST)
)
LEASE_TOKEN_FIELD = field(
    "The claim's `leaseToken`; a stale one is refused. Without it, the token's subject must hold "
    "the lease."
)
CLAIMING = (Scope.WORKER, "claim")
_NO_HOLDS = [from_rejection(Rejected(Rejection.NOTHING_TO_HOLD, each)) for each in HOLDS]
_HOLD = bad_request("invalid 'hold' (must be key, queue or limit)", "invalid-hold")
_HOLD_TOO_EARLY = TooEarly(KEYS_FROM, "'hold' needs")
_INVALID = invalid_body()


class ClaimBody(Body):
    """A worker's claim; `count` matters only to the batch route."""

    commands: list[str] | None = field(
        "Queues to claim from; the token must allow each. Absent or empty for all that it allows.",
        maxItems=COMMANDS_MAX,
        items=COMMAND_SCHEMA,
    )
    worker_name: str | None = field(
        "This worker among those of the token, such as its host and process; it is only shown. "
        "The lease keeps it, so a heartbeat needs none.",
        pattern=f"^({WORKER_NAME.pattern})?$",
        refused=(INVALID_NAME,),
    )
    lease_seconds: int | None = field(
        "Duration of the lease; {node.lifecycle.default_lease_seconds} for 0 or less.",
        maximum=attrgetter("limits.lease_seconds_max"),
    )
    wait_seconds: int | None = field(
        "How long to wait for a task; clamped to 0 to {node.limits.claim_wait_seconds_max}. "
        f"The wait ends {EARLY_S} s early."
    )
    count: int | None = field(
        "Maximum number of tasks; only the batch route uses it.",
        refused=(),
        minimum=1,
        maximum=attrgetter("limits.batch_max"),
    )


class LeaseBody(Body):
    """The fields of a heartbeat, an abandon and a nack."""

    extend_seconds: int | None = field(
        "Of a heartbeat: time from now to the new end of the lease; "
        "{node.lifecycle.default_lease_seconds} for 0 or less.",
        refused=(),
        maximum=attrgetter("limits.lease_seconds_max"),
    )
    delay_seconds: int | None = field(
        "Of a nack: time until the task is ready again, clamped to 0 to "
        "{node.lifecycle.backoff_max_seconds}; 0 for the delay of the back-off."
    )
    reason: str | None = field(
        f"Of a nack: why; the task's history keeps the first {REASON_CHARS_MAX} characters."
    )
    hold: str | None = field(
        "Of a nack: `key`, `queue` or `limit` if nothing of the task's key, its queue, or the "
        "limit that its queue shares is to be handed out before that delay is over. The delivery "
        "does not count then, and the task goes first. The topic needs `flow.perKey`; a limit of "
        "the queue itself; or a `flow.limit`, all of whose queues the token allows.",
        enum=[*HOLDS, None],
    )
    lease_token: Int64 | None = LEASE_TOKEN_FIELD
    progress: Raw = progress_field()
    checkpoint: Raw = checkpoint_field()
    log: list[str] | None = log_field()


_CLAIM = Schema(ClaimBody)
_LEASE = Schema(LeaseBody)


class ClaimedBatch(Struct, rename="camel"):
    """The tasks now leased to the caller, in claim order."""

    tasks: list[TaskView]


class ExtendedLease(Struct, rename="camel"):
    """The new end of the lease; `cancel` if the task is to end."""

    ok: bool
    lease_until: str
    cancel: CancelView | UnsetType = UNSET


class AbandonedTask(Struct, rename="camel"):
    """Where the task went: `requeued`, `dlq` if it has had all its attempts.

    Or `cancelled`, if it was to end.
    """

    status: str


class RefusedTask(Struct, rename="camel"):
    """Where the task went, as for an abandoned one, and the delay until it is ready again."""

    status: str
    delay_seconds: int


def count_too_large(node: NodeSettings) -> ApiError:
    """Return the error for a claim of too many tasks."""
    return bad_request(f"count exceeds maximum of {node.limits.batch_max}", "count-too-large")


_NOTHING_CAME = Answer("No task became ready in time.", status=204)
_CLAIM_EXAMPLE = {"commands": [CLAIMED.command], "leaseSeconds": 300, "waitSeconds": 10}
_CLAIM_REFUSED = (
    INVALID_COMMAND,
    NOT_ALLOWED,
    rate_limited(*CLAIMING),
    budget_exceeded("inFlight", "claim"),
)
_LEASE_REFUSED = (NOT_FOUND, *NOT_HELD)
_TOKEN = {"leaseToken": CLAIMED.lease_token}


@ROUTES(
    "POST",
    "/tasks/claim",
    Answer("The task, now leased to the caller.", CLAIMED),
    _NOTHING_CAME,
    scope="codeq:claim",
    body=_CLAIM,
    example=_CLAIM_EXAMPLE,
    errors=_CLAIM_REFUSED,
    whole=True,
)
async def claim(call: Call) -> HttpAnswer[TaskView]:
    """Claim one task: 200, or 204 when none came in time."""
    await call.spend(*CLAIMING)
    body = _CLAIM.decode(call.text)
    claimed = await _claimed(call, body, count=1)
    if not claimed.tasks:
        return HttpAnswer(status=204)
    _trace(call, claimed)
    [task], [payload] = claimed.tasks, claimed.payloads
    return reply(_claimed_view(claimed, task, payload, shards=call.services.settings.shards))


@ROUTES(
    "POST",
    "/tasks/claim/batch",
    Answer("The tasks, now leased to the caller; at least one.", ClaimedBatch([CLAIMED])),
    _NOTHING_CAME,
    scope="codeq:claim",
    body=_CLAIM,
    example=lambda node: {"count": min(10, node.limits.batch_max)} | _CLAIM_EXAMPLE,
    required=("count",),
    errors=(count_too_large, *_CLAIM_REFUSED),
    whole=True,
)
async def claim_batch(call: Call) -> HttpAnswer[ClaimedBatch]:
    """Claim up to `count` tasks; the wait ends with the first."""
    await call.spend(*CLAIMING)
    body = _CLAIM.decode(call.text)
    count = whole("count", body.count, error=_INVALID)
    settings = call.services.settings
    if count < 1:
        raise _INVALID.because("count: must be 1 or more")
    if count > settings.limits.batch_max:
        raise count_too_large(settings)
    call.weigh(count)
    claimed = await _claimed(call, body, count=count)
    if not claimed.tasks:
        return HttpAnswer(status=204)
    _trace(call, claimed)
    return reply(ClaimedBatch(_views(call, claimed)))


@ROUTES(
    "POST",
    "/tasks/{id}/heartbeat",
    Answer(
        "The new end of the lease; a majority of the nodes has it.",
        ExtendedLease(ok=True, lease_until="2026-01-31T12:05:00.000Z", cancel=CANCEL),
    ),
    scope="codeq:heartbeat",
    body=_LEASE,
    example={"extendSeconds": 300} | _TOKEN,
    parameters=(LEASE_TOKEN,),
    errors=(lambda node: too_high("extendSeconds", node.limits.lease_seconds_max), *_LEASE_REFUSED),
    whole=True,
)
async def heartbeat(call: Call) -> HttpAnswer[ExtendedLease]:
    """Extend a lease, and say how far the work is, or what it does."""
    body = _LEASE.decode(call.text)
    extend_ms = lease_ms(call, body.extend_seconds, "extendSeconds")
    progress, checkpoint, log = read_report(call, body.progress, body.checkpoint, body.log)
    held = HeldLease(
        id=call.task_id(not_found=NOT_FOUND),
        token=lease_token(call, body.lease_token),
        extend_ms=extend_ms,
        progress=progress,
        checkpoint=checkpoint,
        log=log,
    )
    outcome = await call.services.broker.heartbeat(
        call.identity.tenant, call.identity.subject, held, timeout_s=call.timeout_s
    )
    if isinstance(outcome, Rejected):
        raise from_rejection(outcome)
    answer = ExtendedLease(True, rfc3339(outcome.lease_until_ms))
    if outcome.cancelling is not None:
        answer.cancel = cancel_view(outcome.cancelling)
    return reply(answer)


@ROUTES(
    "POST",
    "/tasks/{id}/abandon",
    Answer("The task returned to its queue, or became a dead letter.", AbandonedTask("requeued")),
    scope="codeq:abandon",
    body=_LEASE,
    example=_TOKEN,
    may_miss=True,
    parameters=(LEASE_TOKEN,),
    errors=_LEASE_REFUSED,
    whole=True,
)
async def abandon(call: Call) -> HttpAnswer[AbandonedTask]:
    """Return a task to its queue; a body is optional."""
    body = _LEASE.decode_any(call.text)
    operation = Abandon(
        request=new_request(),
        id=call.task_id(not_found=NOT_FOUND),
        tenant=call.identity.tenant,
        worker=call.identity.subject,
        token=lease_token(call, body.lease_token),
    )
    returned = accepted(await call.services.broker.give_back(operation, call.timeout_s))
    return reply(AbandonedTask(went(returned)))


@ROUTES(
    "POST",
    "/tasks/{id}/nack",
    Answer(
        "The task returns to its queue after a delay, or became a dead letter.",
        RefusedTask("requeued", delay_seconds=30),
    ),
    scope="codeq:nack",
    body=_LEASE,
    example={"delaySeconds": 30, "reason": "upstream is down"} | _TOKEN,
    parameters=(LEASE_TOKEN,),
    errors=(*_LEASE_REFUSED, NOT_ALLOWED, _HOLD, *_NO_HOLDS, _HOLD_TOO_EARLY),
    whole=True,
)
async def nack(call: Call) -> HttpAnswer[RefusedTask]:
    """Return a task to its queue after a delay, the given one or the back-off's; see `hold`."""
    body = _LEASE.decode(call.text)
    delay_s = whole("delaySeconds", body.delay_seconds, error=_INVALID)
    delay_s_max = call.services.settings.lifecycle.backoff_max_seconds
    operation = Nack(
        request=new_request(),
        id=call.task_id(not_found=NOT_FOUND),
        tenant=call.identity.tenant,
        worker=call.identity.subject,
        delay_ms=min(max(delay_s, 0), delay_s_max) * 1000,
        reason=(body.reason or "")[:REASON_CHARS_MAX],
        token=lease_token(call, body.lease_token),
    )
    giving = _holding(call, operation, body.hold)
    returned = accepted(await call.services.broker.give_back(giving, call.timeout_s))
    return reply(RefusedTask(went(returned), delay_seconds=-(-returned.delay_ms // 1000)))


def _holding(call: Call, nack: Nack, hold: str | None) -> Nack | HoldOperation:
    """Return a nack, or the operation that holds more than its task by it.

    It is refused if not all queues that this stops are among those that the token allows.
    """
    if hold is None:
        return nack
    if hold not in HOLDS:
        raise _HOLD
    _HOLD_TOO_EARLY.check(call)
    return HOLDS[hold](nack=nack, commands=allowed_commands(call, None))


async def _claimed(call: Call, body: ClaimBody, *, count: int) -> Claimed:
    limits = call.services.settings.limits
    wait_s = whole("waitSeconds", body.wait_seconds, error=_INVALID)
    wait_s = min(max(wait_s, 0), limits.claim_wait_seconds_max)
    commands = allowed_commands(call, body.commands)
    if len(commands) > 1:
        call.weigh(len(commands))  # Each is looked at on every shard.
    name = body.worker_name or ""
    if name and not WORKER_NAME.fullmatch(name):
        raise INVALID_NAME
    asked_ms = lease_ms(call, body.lease_seconds, "leaseSeconds")
    services, identity = call.services, call.identity
    tenant, subject = identity.tenant, identity.subject
    poll = services.polls.begun(tenant, shown_as(subject, name), commands)
    try:
        return await services.broker.claim(
            tenant,
            subject,
            commands=commands,
            count=count,
            lease_ms=asked_ms,
            wait_s=max(0.0, wait_s - EARLY_S),
            place=partial(services.shares.waits.in_place, identity),
            timeout_s=call.timeout_s,
            worker_name=name,
        )
    except WaitEnded:
        return Claimed(())
    finally:
        poll.waiting -= 1


def allowed_commands(
    call: Call, asked: list[str] | None, *, field: str = "commands", count_max: int = COMMANDS_MAX
) -> tuple[str, ...]:
    """Return the commands a worker asks for; the token's own when the worker names none.

    Args:
        field: Their name in the body.
        count_max: The most that may be named.

    Returns:
        Commands, each once; empty for every command of the tenant.

    Raises:
        ApiError: 403 for a command outside the token; 400 for too many, or for an invalid one.
    """
    allowed = call.identity.event_types
    everything = "*" in allowed
    if not asked or (everything and asked == ["*"]):
        if everything:
            return ()
        # An empty tuple would mean every command, so a token without one usable name gets none.
        commands = tuple(each for each in allowed if COMMAND.fullmatch(each))[:count_max]
        if not commands:
            raise NOT_ALLOWED
        return commands
    if len(asked) > count_max:
        raise too_many(field, count_max)
    if not everything and not set(asked) <= set(allowed):
        raise NOT_ALLOWED
    if not all(map(COMMAND.fullmatch, asked)):
        raise INVALID_COMMAND
    return tuple(dict.fromkeys(asked))


def lease_ms(call: Call, asked_s: int | None, name: str) -> int:
    """Return the length of a lease, the default for none; raises ApiError above the bound."""
    settings = call.services.settings
    lease_s = whole(name, asked_s, error=_INVALID)
    if lease_s > settings.limits.lease_seconds_max:
        raise too_high(name, settings.limits.lease_seconds_max)
    return (lease_s if lease_s > 0 else settings.lifecycle.default_lease_seconds) * 1000


def lease_token(call: Call, in_body: int | None, error: ApiError = _INVALID) -> int:
    """Return the lease token of the body, or of the header; 0 for none.

    Raises:
        ApiError: The given error, or 400 for a header that is not an integer.
    """
    if in_body is not None:
        return whole("leaseToken", in_body, error=error)
    in_header = call.headers.get("x-codeq-lease-token")
    if not in_header:
        return 0
    if "_" in in_header or not in_header.isascii():
        raise INVALID_TOKEN  # `int` takes these.
    try:
        return whole("X-CodeQ-Lease-Token", int(in_header), error=error)
    except ValueError as malformed:
        raise INVALID_TOKEN from malformed


def _trace(call: Call, claimed: Claimed) -> None:
    """Record the delivery in the trace of each task."""
    tracing = call.services.telemetry.tracing
    if tracing is None:
        return
    for task in claimed.tasks:
        if task.trace_parent:
            tracing.claimed(
                task.trace_parent,
                task.trace_state,
                task_id=task.id,
                command=task.command,
                attempt=task.attempts,
            )


def went(returned: Returned) -> str:
    """Return where a task went that its worker gave up."""
    if returned.cancelled:
        return "cancelled"
    return "dlq" if returned.dead else "requeued"


def _views(call: Call, claimed: Claimed) -> list[TaskView]:
    shards = call.services.settings.shards
    return [
        _claimed_view(claimed, task, payload, shards=shards)
        for task, payload in zip(claimed.tasks, claimed.payloads, strict=True)
    ]


def _claimed_view(claimed: Claimed, task: Task, payload: str, *, shards: int) -> TaskView:
    view = task_view(task, payload, shards=shards, claimed=True)
    if task.id in claimed.inputs:
        show_inputs(view, claimed.inputs[task.id])
    if task.id in claimed.steps:
        view.steps = list(map(step_view, claimed.steps[task.id]))
    if task.id in claimed.checkpoints:
        view.checkpoint = Raw(claimed.checkpoints[task.id].encode())
    return view
