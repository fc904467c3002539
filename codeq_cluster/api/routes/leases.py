"""Leases: all that a worker holds, renewed in one request that may wait for what ends one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from operator import attrgetter

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema, field, whole
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import (
    ApiError,
    bad_request,
    from_failure,
    from_rejection,
    invalid_body,
)
from codeq_cluster.api.http.refusals import NOT_FOUND, batch_too_large
from codeq_cluster.api.http.waits import WaitEnded
from codeq_cluster.api.routes import workers
from codeq_cluster.api.routes.reports import (
    checkpoint_field,
    log_field,
    progress_field,
    read_report,
)
from codeq_cluster.api.routes.task_views import CANCEL, CLAIMED, TASK_ID, CancelView, cancel_view
from codeq_cluster.api.routes.workers import EARLY_S, LEASE_TOKEN_FIELD, lease_ms
from codeq_cluster.auth import Access
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.leases import HeldLease, Kept
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.outcomes import Extended, Rejected
from codeq_cluster.core.task import Cancelling
from codeq_cluster.errors import Overloaded
from codeq_cluster.portions import BODIES_AT_ONCE, in_portions

# One worker's: they are written in one entry a shard, 1,000 x 600 bytes at most.
LEASES_MAX = 1000

ROUTES = Routes("workers", workers.__doc__, Access.WORKER)

_INVALID = invalid_body()
# A thousand renewals of one lease, each with twenty log lines, would hold its leader for seconds.
_TWICE = bad_request("an earlier lease of this request has the same id", "duplicate-lease")


class HeldLeaseBody(Body):
    """One lease of a batch."""

    id: str | None = field("Id of the task.", required=True)
    lease_token: Int64 | None = LEASE_TOKEN_FIELD
    extend_seconds: int | None = field(
        "Time from now to the new end of the lease; {node.lifecycle.default_lease_seconds} for 0 "
        "or less.",
        maximum=attrgetter("limits.lease_seconds_max"),
    )
    watch_only: bool | None = field(
        "Do not renew this lease, only hear of its loss; for one that was renewed a moment ago. "
        "What else the lease says is then ignored."
    )
    knows_cancel: bool | None = field(
        "The worker has heard that the task is to end: that does not end the wait again."
    )
    progress: Raw = progress_field()
    checkpoint: Raw = checkpoint_field()
    log: list[str] | None = log_field()


LEASE_SCHEMA = Schema(HeldLeaseBody)


class HeldLeasesBody(Body):
    """Leases; each item is decoded on its own."""

    leases: list[Raw] | None = field(
        "The leases, each once; a refused one does not affect the others.",
        required=True,
        refused=(batch_too_large(LEASES_MAX), _TWICE),
        each=LEASE_SCHEMA,
        minItems=1,
        maxItems=LEASES_MAX,
    )
    wait_seconds: int | None = field(
        "How long to wait for the loss of a lease once all are renewed; clamped to 0 to "
        f"{{node.limits.claim_wait_seconds_max}}. The wait ends {EARLY_S} s early."
    )


_LEASES = Schema(HeldLeasesBody)


class KeptLease(Struct, rename="camel"):
    """What became of one lease: its new end, or an error with its code.

    `retryable` says whether to send the heartbeat again, `detail` what is wrong, as in an `Error`;
    `cancel` is there if the task is to end.
    """

    id: str
    lease_until: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    cancel: CancelView | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class KeptLeases(Struct, rename="camel"):
    """One entry per lease, in the leases' order."""

    leases: list[KeptLease]


@ROUTES(
    "POST",
    "/tasks/batch/heartbeats",
    Answer(
        "What became of each lease, in order; a majority of the nodes has it.",
        KeptLeases(
            [
                KeptLease(TASK_ID, "2026-01-31T12:05:00.000Z", cancel=CANCEL),
                KeptLease("unheard-of", **NOT_FOUND.as_item()),
            ]
        ),
    ),
    scope="codeq:heartbeat",
    body=_LEASES,
    example={
        "leases": [
            {"id": TASK_ID, "leaseToken": CLAIMED.lease_token, "extendSeconds": 60},
            {"id": "unheard-of"},
        ],
        "waitSeconds": 20,
    },
    whole=True,
)
async def heartbeats(call: Call) -> HttpAnswer[KeptLeases]:
    """Extend leases, independently; then wait until one is lost, if the request says so.

    The wait also ends when the task of one is to end, of which the worker does not know yet.
    """
    body = _LEASES.decode(call.text)
    items = body.leases
    limits = call.services.settings.limits
    if not items:
        raise _LEASES.unreadable.because("leases is missing or empty")
    if len(items) > LEASES_MAX:
        raise batch_too_large(LEASES_MAX)
    call.weigh(len(items))
    wait_s = whole("waitSeconds", body.wait_seconds, error=_INVALID)
    wait_s = min(max(wait_s, 0), limits.claim_wait_seconds_max)
    waits_until = deadline_in(wait_s - EARLY_S)
    read = _once([_read(call, item) async for item in in_portions(items, BODIES_AT_ONCE)])
    held = [each for _, each in read if isinstance(each, HeldLease)]
    renewed = iter(
        await call.services.broker.leases.renew(
            call.identity.tenant, call.identity.subject, held, timeout_s=call.timeout_s
        )
    )
    answers: list[tuple[str, Kept | ApiError]] = [
        (task_id, next(renewed) if isinstance(each, HeldLease) else each) for task_id, each in read
    ]
    known = {each.id for each in held if each.knows_cancel}
    if not any(_is_news(*each, known) for each in answers):
        watched = any(not each.extend_ms for each in held)
        if wait_s or watched:
            left_s = waits_until - asyncio.get_running_loop().time()
            news = await _news(call, held, max(0.0, left_s))
            answers = [(task_id, _latest(answer, news.get(task_id))) for task_id, answer in answers]
    return reply(KeptLeases([_answer(*each) for each in answers]))


def _is_news(task_id: str, answer: Kept | ApiError, known: set[str]) -> bool:
    """Return whether an answer is one that the worker must have at once."""
    if not isinstance(answer, Extended):
        return True
    return answer.cancelling is not None and task_id not in known


def _latest(answer: Kept | ApiError, news: Rejected | Cancelling | None) -> Kept | ApiError:
    if isinstance(news, Cancelling) and isinstance(answer, Extended):
        until_ms = min(answer.lease_until_ms, news.deadline_ms)
        return Extended(until_ms, news)
    return news if isinstance(news, Rejected) else answer


async def _news(
    call: Call, held: list[HeldLease], wait_s: float
) -> dict[str, Rejected | Cancelling]:
    """Return what leases there is news of, after the wait for the first of them."""
    identity, shares = call.identity, call.services.shares
    leases = call.services.broker.leases
    if wait_s <= 0:
        return await leases.news(identity.tenant, identity.subject, held, wait_s=0)
    try:
        with shares.waits.in_place(identity):
            return await leases.news(identity.tenant, identity.subject, held, wait_s=wait_s)
    except (WaitEnded, Overloaded):
        return {}  # The leases are renewed, and the worker has to know that.


def _read(call: Call, item: Raw) -> tuple[str, HeldLease | ApiError]:
    task_id = ""
    try:
        body = LEASE_SCHEMA.decode(item)
        task_id = body.id or ""
        token = whole("leaseToken", body.lease_token, error=_INVALID)
        progress, checkpoint, log = read_report(call, body.progress, body.checkpoint, body.log)
        extend_ms = 0 if body.watch_only else lease_ms(call, body.extend_seconds, "extendSeconds")
    except ApiError as refused:
        return task_id, refused.with_traceback(None)
    if not is_task_id(task_id):
        return task_id, NOT_FOUND
    held = HeldLease(
        id=task_id,
        token=token,
        extend_ms=extend_ms,
        progress=progress,
        checkpoint=checkpoint,
        log=log,
        knows_cancel=bool(body.knows_cancel),
    )
    return task_id, held


def _once(
    leases: Iterable[tuple[str, HeldLease | ApiError]],
) -> list[tuple[str, HeldLease | ApiError]]:
    """Refuse each lease whose task an earlier one of the request has."""
    found: list[tuple[str, HeldLease | ApiError]] = []
    renewed: set[str] = set()
    for task_id, lease in leases:
        is_lease = isinstance(lease, HeldLease)
        found.append((task_id, _TWICE if is_lease and task_id in renewed else lease))
        if is_lease:
            renewed.add(task_id)
    return found


def _answer(task_id: str, kept: Kept | ApiError) -> KeptLease:
    match kept:
        case Extended():
            until_ms = kept.lease_until_ms
            cancel = UNSET if kept.cancelling is None else cancel_view(kept.cancelling)
            return KeptLease(task_id, rfc3339(until_ms) if until_ms else UNSET, cancel=cancel)
        case Rejected():
            error = from_rejection(kept)
        case ApiError():
            error = kept
        case _:
            error = from_failure(kept)
    return KeptLease(task_id, **error.as_item())
