"""Groups: tasks that one task follows after the last of them has ended."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema, chosen, field, raw_field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request, each_of, from_failure, from_rejection
from codeq_cluster.api.http.refusals import NOT_FOUND, budget_exceeded, rate_limited, too_many
from codeq_cluster.api.routes.group_calls import (
    BAD_ID,
    GROUP_SEALED,
    TOO_EARLY,
    TOO_MANY_GROUPS,
    TOO_MANY_MEMBERS,
    accepted,
)
from codeq_cluster.api.routes.listing import PAGE, asked_page, caller, listed
from codeq_cluster.api.routes.task_bodies import (
    TASK_SCHEMA,
    keyed,
    new_task,
    refused_webhooks,
    task_within,
)
from codeq_cluster.api.routes.task_views import (
    NOON_MS,
    TASK_ID,
    FollowUpView,
    ResultView,
    follow_up_view,
    result_view,
)
from codeq_cluster.api.routes.tasks import CREATING
from codeq_cluster.auth import Access
from codeq_cluster.broker.questions import END
from codeq_cluster.broker.requests.producer import too_many_queues
from codeq_cluster.broker.values import new_request
from codeq_cluster.core.groups import (
    GROUP_NAME,
    SEAL_MS_MAX,
    THEN_BYTES_MAX,
    CreateGroup,
    Group,
    OnFailure,
    ThenIf,
    status_of,
)
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.new_task import Create, template_of
from codeq_cluster.core.outcomes import GroupStands, Rejected, Rejection
from codeq_cluster.portions import BODIES_AT_ONCE, in_portions
from codeq_cluster.ratelimit.token_bucket import Scope

ROUTES = Routes(__name__, __doc__, Access.PRODUCER)

TASKS_MAX = 1000  # Of one request.
SEAL_S_DEFAULT = 86_400

INVALID_GROUP = bad_request("invalid group", "invalid-group")
KEY_TWICE = bad_request("two tasks have one idempotencyKey", "duplicate-idempotency-key")
_DIGEST_BYTES = 16
_CONFLICT = from_rejection(Rejected(Rejection.IDEMPOTENCY_CONFLICT))


def _choice(of: type[StrEnum], text: str) -> Any:
    return field(text, refused=(INVALID_GROUP,), enum=[*(each.value for each in of), None])


def _members(text: str, *, required: bool = False) -> Any:
    return field(
        f"{text} At most {TASKS_MAX}; a task of an idempotency key that is taken is not made, and "
        "does not count.",
        each=TASK_SCHEMA,
        all_or_none=True,
        required=required,
        max_length=TASKS_MAX,
        refused=(too_many("tasks", TASKS_MAX), KEY_TWICE),
    )


class GroupBody(Body):
    """A group to begin."""

    id: str | None = field(
        "Its name; drawn when absent. A repeated request of the same name changes nothing.",
        pattern=f"^{GROUP_NAME.pattern}$",
        refused=(BAD_ID, _CONFLICT),
    )
    idempotency_key: str | None = field(
        "The same as `id`.", pattern=f"^{GROUP_NAME.pattern}$", refused=(BAD_ID,)
    )
    then: Raw = raw_field(
        "The completion task, as it is created, without a key, a start or a delay of its own. Its "
        f"payload has at most {THEN_BYTES_MAX} bytes.",
        inner=TASK_SCHEMA,
        refused=(INVALID_GROUP,),
    )
    then_if: str | None = _choice(
        ThenIf,
        "`ended`, the default: it is made however the members end; `succeeded`: only if all of "
        "them are completed.",
    )
    on_failure: str | None = _choice(
        OnFailure,
        "What a failed member or a dead letter means for the others: they `continue`, the "
        "default, or the group is sealed and they are cancelled.",
    )
    tasks: list[Raw] | None = _members("The first members.")
    seal: bool | None = field("There are no more members.", default=False)
    seal_within_seconds: int | None = field(
        "A group that is not sealed within this time fails, without a completion task.",
        ge=1,
        le=SEAL_MS_MAX // 1000,
        default=SEAL_S_DEFAULT,
    )


class MembersBody(Body):
    """Tasks that join a group."""

    tasks: list[Raw] | None = _members("The tasks, all or none of each hundred.", required=True)
    idempotency_key: str | None = field("A repeated request with the same key adds none twice.")


_GROUP = Schema(GroupBody)
_MEMBERS = Schema(MembersBody)


class GroupView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A group, and what has become of its members.

    `status` is `OPEN` until it is sealed, `SEALED` or `CANCELLING` until the last member has
    ended, and then COMPLETED, FAILED or CANCELLED. `waitsFor` says what is missing: `seal`,
    `members`. A dead letter has ended; requeued, it is not counted again.
    """

    id: str
    status: str
    total: int
    live: int
    completed: int
    failed: int
    cancelled: int
    dead: int
    then_if: str
    on_failure: str
    waits_for: list[str] = []
    then_command: str = ""
    then_task_id: str = ""
    reason: str = ""
    created_at: str
    seal_by: str = ""
    sealed_at: str = ""
    ended_at: str = ""
    tasks: list[FollowUpView] | UnsetType = UNSET


class GroupsPage(Struct, rename="camel"):
    """A page of groups: those that have not ended, the newest first, and then the others."""

    groups: Sequence[GroupView]
    cursor: str | UnsetType = UNSET


class MemberView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A member of a group: `status` is `LIVE` until it has ended, or NOT_MADE."""

    task_id: str
    idempotency_key: str = ""
    status: str
    ended_at: str = ""
    result: ResultView | UnsetType = UNSET


class MembersPage(Struct, rename="camel"):
    """A page of a group's members."""

    members: Sequence[MemberView]
    cursor: str | UnsetType = UNSET


EXAMPLE = GroupView(
    id="import-7",
    status="SEALED",
    total=2,
    live=1,
    completed=1,
    failed=0,
    cancelled=0,
    dead=0,
    then_if="ended",
    on_failure="continue",
    waits_for=["members"],
    then_command="report",
    created_at=rfc3339(NOON_MS),
    sealed_at=rfc3339(NOON_MS),
)
_TASK = {"command": "index", "payload": {"part": 1}}
_LIMITED = (
    rate_limited(*CREATING),
    budget_exceeded("readyTasks", "create_task"),
    budget_exceeded("storedBytes", "create_task"),
    lambda node: from_failure(too_many_queues(node.limits.queues_max)),
    TOO_MANY_MEMBERS,
)
_NAMED = (NOT_FOUND,)
_STANDS = Answer("The group.", EXAMPLE)


@ROUTES(
    "POST",
    "/groups",
    Answer("The group: a new one, or the one that the same request made.", EXAMPLE, status=202),
    body=_GROUP,
    example={
        "id": "import-7",
        "then": {"command": "report", "payload": {}},
        "tasks": [_TASK, _TASK | {"payload": {"part": 2}}],
        "seal": True,
    },
    errors=(*_LIMITED, TOO_MANY_GROUPS, TOO_EARLY),
)
async def create(call: Call) -> HttpAnswer[GroupView]:
    """Begin a group; `then` is made once, after the last member of a sealed group has ended.

    It is made in the entry that ends the last member. Its claim says in `group` how many members
    there were, and how they ended. A sealed group without members ends at once.
    """
    TOO_EARLY.check(call)
    body = _GROUP.decode(call.text)
    names = {name for name in (body.id, body.idempotency_key) if name is not None}
    if len(names) > 1:
        raise _CONFLICT
    if not all(map(GROUP_NAME.fullmatch, names)):
        raise BAD_ID
    [group_id] = names or {new_request()}
    items = body.tasks or ()
    # A group is worth a create by itself: it has a row, and may have a completion task.
    await _spend(call, len(items), besides=int(_is_given(body.then) or not items))
    within_s = SEAL_S_DEFAULT if body.seal_within_seconds is None else body.seal_within_seconds
    asked = CreateGroup(
        tenant=call.identity.tenant,
        id=group_id,
        digest=blake2b(call.text.encode(), digest_size=_DIGEST_BYTES).hexdigest(),
        then=await _then(call, body.then),
        then_if=chosen(ThenIf, "thenIf", body.then_if, INVALID_GROUP.one_of) or ThenIf.ENDED,
        on_failure=chosen(OnFailure, "onFailure", body.on_failure, INVALID_GROUP.one_of)
        or OnFailure.CONTINUE,
        seal_within_ms=within_s * 1000,
        tasks=await _tasks(call, items),
        seal=body.seal or False,
    )
    return _reply(await call.services.broker.groups.create(caller(call), asked), status=202)


@ROUTES(
    "POST",
    "/groups/{id}/tasks",
    Answer("The group, with the tasks that were asked for.", EXAMPLE, status=202),
    body=_MEMBERS,
    example={"tasks": [_TASK]},
    errors=(*_NAMED, *_LIMITED, GROUP_SEALED),
)
async def add(call: Call) -> HttpAnswer[GroupView]:
    """Add tasks to a group that is not sealed.

    The answer names those with an idempotency key by it, because another shard makes them.
    """
    group_id = _id(call)
    body = _MEMBERS.decode(call.text)
    if body.tasks is None:
        raise _MEMBERS.unreadable.because("tasks is missing")
    await _spend(call, len(body.tasks))
    tasks = await _tasks(call, body.tasks)
    key = (body.idempotency_key or new_request()).encode()
    name = blake2b(key, digest_size=_DIGEST_BYTES).hexdigest()
    groups = call.services.broker.groups
    return _reply(await groups.add(caller(call), group_id, tasks, name=name), status=202)


@ROUTES("POST", "/groups/{id}/seal", _STANDS, errors=_NAMED)
async def seal(call: Call) -> HttpAnswer[GroupView]:
    """Let nobody add to a group but its live members, by the `next` of their results."""
    return _reply(await call.services.broker.groups.seal(caller(call), _id(call)))


@ROUTES("POST", "/groups/{id}/cancel", _STANDS, errors=_NAMED)
async def cancel(call: Call) -> HttpAnswer[GroupView]:
    """Seal a group and cancel its members; they end a few at a time."""
    return _reply(await call.services.broker.groups.cancel(caller(call), _id(call)))


@ROUTES("GET", "/groups", Answer("A page.", GroupsPage([EXAMPLE])), parameters=PAGE)
async def groups(call: Call) -> HttpAnswer[GroupsPage]:
    """Return the groups: those that have not ended, the newest first; then the last that ended.

    A group that ends between two pages may be on both.
    """
    found, cursor = await listed(call, Group)
    return reply(GroupsPage([*map(group_view, found)], cursor))


@ROUTES("GET", "/groups/{id}", _STANDS, errors=_NAMED)
async def group(call: Call) -> HttpAnswer[GroupView]:
    """Return a group; it is kept for seven days after its end."""
    return reply(group_view(await _known(call)))


@ROUTES(
    "GET",
    "/groups/{id}/results",
    Answer("A page.", MembersPage([MemberView(task_id=TASK_ID, status="LIVE")])),
    parameters=PAGE,
    errors=_NAMED,
)
async def results(call: Call) -> HttpAnswer[MembersPage]:
    """Return the members of a group with their results, by id; a page may be short.

    A result is there as long as its task: from the group's end on for the task's retention, and
    for at most seven days after the task's own end.
    """
    known = await _known(call)
    asked = asked_page(call)
    found, edge = await call.services.broker.groups.results(
        caller(call), known.id, after=asked.after, count=asked.count
    )
    views = [
        MemberView(
            task_id=each.member.task_id,
            idempotency_key=each.member.key,
            status=each.member.status or "LIVE",
            ended_at=rfc3339(each.member.ended_ms) if each.member.ended_ms else "",
            result=UNSET if each.result is None else result_view(each.result),
        )
        for each in found
    ]
    return reply(MembersPage(views, asked.cursor(b"" if edge == END else edge)))


async def _spend(call: Call, members: int, *, besides: int = 0) -> None:
    """Count members, and what comes besides, against the tenant's rate of creates."""
    if members > TASKS_MAX:
        raise too_many("tasks", TASKS_MAX)
    most = call.most(Scope.PRODUCER)
    if most and members + besides > most:
        raise too_many("tasks", most - besides)
    if members or besides:
        await call.spend(*CREATING, members + besides)


async def _tasks(call: Call, items: Sequence[Raw]) -> tuple[Create, ...]:
    """Return the members that a body asks for."""
    call.weigh(len(items))
    decoded = each_of("tasks", items, TASK_SCHEMA.decode)
    bodies = [each async for each in in_portions(decoded, BODIES_AT_ONCE)]
    refused = await refused_webhooks(call, bodies)
    read = each_of("tasks", bodies, lambda body: new_task(call, body, refused=refused))
    return keyed([each async for each in in_portions(read, BODIES_AT_ONCE)], twice=KEY_TWICE)


async def _then(call: Call, item: Raw) -> Create | None:
    if not _is_given(item):
        return None
    task = await task_within(call, item, "then")
    if task != template_of(task):
        raise INVALID_GROUP.about("then").because("then: leave out its keys, start and delay")
    if len(task.payload.encode()) > THEN_BYTES_MAX:
        raise INVALID_GROUP.about("then").because(f"then: at most {THEN_BYTES_MAX} bytes")
    return task


def _is_given(item: Raw) -> bool:
    return bytes(item) != b"null"


async def _known(call: Call) -> Group:
    found = await call.services.broker.groups.get(caller(call), _id(call))
    if found is None:
        raise NOT_FOUND
    return found


def _id(call: Call) -> str:
    group_id = call.request.match_info["id"]
    if not GROUP_NAME.fullmatch(group_id):
        raise NOT_FOUND  # No group can have it.
    return group_id


def _reply(outcome: GroupStands | Rejected, *, status: int = 200) -> HttpAnswer[GroupView]:
    stands = accepted(outcome)
    view = group_view(stands.group)
    if stands.names:
        view.tasks = list(map(follow_up_view, stands.names))
    return reply(view, status=status)


def group_view(of: Group) -> GroupView:
    """Return a group as answers show it."""
    waits = []
    if not of.ended_ms:
        waits = ["seal"] * (not of.sealed_ms) + ["members"] * bool(of.live)
    return GroupView(
        id=of.id,
        status=status_of(of),
        total=of.total,
        live=of.live,
        completed=of.completed,
        failed=of.failed,
        cancelled=of.cancelled,
        dead=of.dead,
        then_if=of.then_if.value,
        on_failure=of.on_failure.value,
        waits_for=waits,
        then_command=of.then.command if of.then is not None else "",
        then_task_id=of.then_id,
        reason=of.reason,
        created_at=rfc3339(of.created_ms),
        seal_by="" if of.sealed_ms else rfc3339(of.expires_ms),
        sealed_at=rfc3339(of.sealed_ms) if of.sealed_ms else "",
        ended_at=rfc3339(of.ended_ms) if of.ended_ms else "",
    )
