"""Graph calls: `dependsOn` in the body of a task, and the refusals of what waits for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from codeq_cluster.api.declared.bodies import field
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure, from_rejection
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.routes.group_calls import refusal
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.broker.requests.graphs import Asked, AskedNode
from codeq_cluster.codec.levels import GRAPHS_FROM
from codeq_cluster.core.bounds import TASK_ID
from codeq_cluster.core.dependencies import EDGES_MAX, NEEDS_MAX, OnDead, Otherwise, RunIf, Terms
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Created, Rejected, Rejection
from codeq_cluster.errors import CodeqError, TooMany

TOO_EARLY = TooEarly(GRAPHS_FROM, "'dependsOn' needs")
INVALID_DEPENDENCY = bad_request("invalid 'dependsOn'", "invalid-depends-on").because(
    f"at most {NEEDS_MAX}, each once, of a task that is created by itself or in a graph, without "
    "a group"
)
UNKNOWN = from_rejection(Rejected(Rejection.UNKNOWN_DEPENDENCY, "no task"))
TOO_MANY_DEPENDENTS = from_failure(TooMany("dependents of one task", EDGES_MAX))

E = TypeVar("E", bound=StrEnum)


class DependencyBody(
    Struct, kw_only=True, rename={"run_if": "runIf", "on_dead": "onDead", "otherwise": "else"}
):
    """A dependency with its terms."""

    id: str | None = None
    ref: str | None = None
    run_if: RunIf | None = None
    otherwise: Otherwise | None = None
    on_dead: OnDead | None = None


_dependency = msgspec.json.Decoder(str | DependencyBody).decode


def depends_on_field() -> Any:
    """Declare the tasks that a task waits for."""

    def choice(of: type[StrEnum]) -> dict[str, object]:
        return {"type": ["string", "null"], "enum": [*(each.value for each in of), None]}

    name = {"type": ["string", "null"]}
    terms = {
        "runIf": choice(RunIf),
        "else": choice(Otherwise),
        "onDead": choice(OnDead),
    }
    whole = {"type": "object", "properties": {"id": name, "ref": name} | terms}
    return field(
        "The tasks that it waits for, by id or, in a graph, by `ref`. `runIf` says how each must "
        "end: `succeeded`, the default, `failed` or `ended`. If it cannot, `else` says what "
        "becomes of this task: `cancel`, the default, ends it as FAILED, `dead-letter` keeps it "
        "for an operator. A dead letter has failed; what it must succeed for waits for a requeue, "
        "unless `onDead` is `fail`. Not in a batch, a group, a schedule or a result's `next`.",
        items={"anyOf": [{"type": "string"}, whole]},
        refused=(INVALID_DEPENDENCY, TOO_EARLY, UNKNOWN, TOO_MANY_DEPENDENTS),
        maxItems=NEEDS_MAX,
    )


def read_depends_on(items: Sequence[Raw] | None, refs: Mapping[str, int]) -> tuple[Asked, ...]:
    """Return the dependencies that a body asks for.

    Args:
        items: Of the body; None for none.
        refs: The places of the tasks of the same request, by ref.

    Raises:
        ApiError: 400; one is no dependency, is there twice, or there are too many.
    """
    items = items or ()
    if len(items) > NEEDS_MAX:
        raise INVALID_DEPENDENCY
    found = tuple(_asked(item, refs) for item in items)
    if len({each.name for each in found}) < len(found):
        raise INVALID_DEPENDENCY
    return found


def refused(rejected: Rejected) -> ApiError:
    """Return the answer to a refusal of tasks that wait for others."""
    if rejected.rejection is Rejection.TOO_MANY and rejected.limit == "dependents":
        return TOO_MANY_DEPENDENTS
    return refusal(rejected)


async def create_dependent(
    call: Call, new: Create, depends_on: Sequence[Raw], *, group: str | None
) -> Created | Rejected | CodeqError:
    """Create a task that waits for others; raises ApiError if it is refused, as in a group."""
    TOO_EARLY.check(call)
    if group:
        raise INVALID_DEPENDENCY
    graphs = call.services.broker.graphs
    outcome = await graphs.create_one(caller(call), AskedNode(new, read_depends_on(depends_on, {})))
    if isinstance(outcome, Rejected):
        raise refused(outcome)
    return outcome


def _asked(item: Raw, refs: Mapping[str, int]) -> Asked:
    try:
        said = _dependency(item)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as unreadable:
        raise INVALID_DEPENDENCY.because(f"dependsOn: {unreadable}") from unreadable
    if isinstance(said, str):
        return _named(said, refs, Terms())
    terms = Terms(
        run_if=said.run_if or RunIf.SUCCEEDED,
        otherwise=said.otherwise or Otherwise.CANCEL,
        on_dead=said.on_dead or OnDead.HOLD,
    )
    names = [each for each in (said.id, said.ref) if each is not None]
    if len(names) != 1:
        raise INVALID_DEPENDENCY.because("dependsOn: say either id or ref")
    return _named(names[0], refs if said.id is None else {}, terms, must_be_ref=said.id is None)


def _named(name: str, refs: Mapping[str, int], terms: Terms, *, must_be_ref: bool = False) -> Asked:
    position = refs.get(name)
    if position is None and (must_be_ref or not TASK_ID.fullmatch(name)):
        raise INVALID_DEPENDENCY.because(f"dependsOn: no task of the request has ref {name[:128]}")
    return Asked(name, terms, position)
