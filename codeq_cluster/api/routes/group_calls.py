"""Group calls: what the routes of groups and of tasks share: their refusals."""

from __future__ import annotations

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure, from_rejection
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.broker.requests.producer import over_budget, too_many_queues
from codeq_cluster.broker.values import new_request
from codeq_cluster.codec.levels import GROUPS_FROM
from codeq_cluster.core.groups import GROUP_NAME, GROUP_NAME_WORDS, GROUPS_MAX, MEMBERS_MAX
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Created, GroupStands, Rejected, Rejection
from codeq_cluster.errors import TooMany

TOO_EARLY = TooEarly(GROUPS_FROM, "groups need")
BAD_ID = bad_request("invalid group id", "invalid-group-id").because(f"use {GROUP_NAME_WORDS}")
BAD_MEMBER = bad_request("invalid 'group'", "invalid-group").because(
    "a member with a key, or of a batch, joins by POST /groups/{id}/tasks"
)
GROUP_SEALED = from_rejection(Rejected(Rejection.GROUP_SEALED))
OTHER_GROUP = from_rejection(Rejected(Rejection.OTHER_GROUP))
TOO_MANY_GROUPS = from_failure(TooMany("groups", GROUPS_MAX))
TOO_MANY_MEMBERS = from_failure(TooMany("members", MEMBERS_MAX))


def check_joined(call: Call, group_id: str) -> None:
    """Check the group that a new task names; raises ApiError."""
    TOO_EARLY.check(call)
    if not GROUP_NAME.fullmatch(group_id):
        raise BAD_ID


async def create_member(call: Call, group: str, new: Create) -> Created:
    """Create a task as a member of a group; raises ApiError if it is refused."""
    if new.idempotency_key or new.key:
        raise BAD_MEMBER
    groups = call.services.broker.groups
    outcome = await groups.add(caller(call), group, (new,), name=new_request())
    [task] = accepted(outcome).tasks  # A member without a key is shown, whatever its shard.
    return Created(task, payload=new.payload)


def accepted(outcome: GroupStands | Rejected) -> GroupStands:
    """Return the outcome; raise the answer to a refusal."""
    if isinstance(outcome, Rejected):
        raise refusal(outcome)
    return outcome


def refusal(rejected: Rejected) -> ApiError:
    """Return the answer to a refusal of members."""
    match rejected.rejection:
        case Rejection.TOO_MANY if rejected.limit == "groups":
            return TOO_MANY_GROUPS
        case Rejection.TOO_MANY if rejected.limit == "members":
            return TOO_MANY_MEMBERS
        case Rejection.TOO_MANY:
            return from_failure(too_many_queues(int(rejected.limit)))
        case Rejection.NOT_FOUND:
            return from_rejection(rejected, not_found="group not found")
        case Rejection.BUDGET_EXCEEDED:
            return from_failure(over_budget(rejected, "create_task"))
        case _:
            return from_rejection(rejected)
