"""Follow-ups: the tasks that a result creates, in the body of a result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

from msgspec import Raw

from codeq_cluster.api.declared.bodies import field
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, each_of
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import NOT_ALLOWED, lacks_scope, too_many
from codeq_cluster.api.routes.task_bodies import TASK_SCHEMA, keyed, new_task, refused_webhooks
from codeq_cluster.api.routes.tasks import CREATING
from codeq_cluster.api.routes.workers import allowed_commands
from codeq_cluster.codec.levels import FOLLOW_UPS_FROM
from codeq_cluster.core.bounds import EFFECTS_BYTES_MAX
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.task import FOLLOW_UPS_MAX
from codeq_cluster.ratelimit.token_bucket import Scope

SCOPE = "codeq:enqueue"
BYTES_MAX = 2**20

_DIGEST_BYTES = 16
TOO_EARLY = TooEarly(FOLLOW_UPS_FROM, "'next' needs")
KEY_TWICE = bad_request("two tasks in 'next' have one idempotencyKey", "duplicate-idempotency-key")


def _too_large(bytes_max: int) -> ApiError:
    """Return the 413 that says how much may follow; a large result leaves less room for it."""
    return ApiError(413, f"'next' exceeds {bytes_max} bytes beside this result", "body-too-large")


def next_field() -> Any:
    """Declare the tasks that follow a result."""
    return field(
        "Tasks to create with this result: all of them with it, or none without it. Needs the "
        f"scope `{SCOPE}`, and the token must allow each command. At most {BYTES_MAX} bytes, and "
        "less beside a result of more than about a megabyte.",
        each=TASK_SCHEMA,
        all_or_none=True,
        refused=(_too_large(BYTES_MAX), KEY_TWICE, NOT_ALLOWED, lacks_scope(SCOPE), TOO_EARLY),
        maxItems=FOLLOW_UPS_MAX,
    )


async def read_next(
    call: Call, items: Sequence[Raw] | None, *, beside: int
) -> tuple[tuple[Create, ...], tuple[str, ...], str]:
    """Return the tasks of a result's `next`, the groups they join, and the digest of what it says.

    Args:
        items: Its tasks; None or empty if nothing follows.
        beside: Bytes that the result itself writes at most.

    Raises:
        ApiError: 400, 403 or 413; nothing of the result may be done.
    """
    if not items:
        return (), (), ""
    if SCOPE not in call.identity.scopes:
        raise lacks_scope(SCOPE)
    TOO_EARLY.check(call)
    if len(items) > FOLLOW_UPS_MAX:
        raise too_many("next", FOLLOW_UPS_MAX)
    texts = [bytes(item) for item in items]
    room = call.services.settings.raft.entry_bytes_max - 2 * EFFECTS_BYTES_MAX - beside
    if sum(map(len, texts)) > min(room, BYTES_MAX):
        raise _too_large(max(0, min(room, BYTES_MAX)))
    bodies = [*each_of("next", items, TASK_SCHEMA.decode)]
    refused = await refused_webhooks(call, bodies)
    read = partial(new_task, call, refused=refused, may_join=True)
    made = [*each_of("next", bodies, read)]
    commands = [task.command for task in made]
    allowed_commands(call, commands, field="next", count_max=FOLLOW_UPS_MAX)
    tasks = keyed(made, twice=KEY_TWICE)
    groups = tuple(body.group or "" for body in bodies)
    digest = blake2b(b"\n".join(texts), digest_size=_DIGEST_BYTES).hexdigest()
    return tasks, groups if any(groups) else (), digest


async def spend_on_next(call: Call, count: int) -> None:
    """Count follow-ups against the tenant's rate of creates, as if they were created by requests.

    Raises:
        ApiError: 400; it is more than the tenant can create at once.
        LimitExceeded: Answered 429; nothing of the result is done, and it may be sent again.
    """
    most = call.most(Scope.PRODUCER)
    if most and count > most:
        raise too_many("next", most)
    await call.spend(*CREATING, count)
