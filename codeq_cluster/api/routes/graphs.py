"""Graphs: tasks of which some wait for others, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b

from msgspec import Raw, Struct

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import (
    ApiError,
    bad_request,
    each_of,
    from_failure,
    from_rejection,
)
from codeq_cluster.api.http.refusals import NO_TASK, budget_exceeded, rate_limited, too_many
from codeq_cluster.api.routes.graph_calls import TOO_EARLY, read_depends_on, refused
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.api.routes.task_bodies import TaskBody, key_too_long, new_task, refused_webhooks
from codeq_cluster.api.routes.task_views import TASK, TASK_ID, TaskView, task_view
from codeq_cluster.api.routes.tasks import CREATING
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.graphs import NEIGHBOURS_MAX, AskedNode, Neighbour
from codeq_cluster.broker.requests.producer import too_many_queues
from codeq_cluster.core.dependencies import GRAPH_EDGES_MAX, NODES_MAX, REF, Dependency
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.ratelimit.token_bucket import Scope

ROUTES = Routes(__name__, __doc__, Access.PRODUCER)

CYCLE = bad_request("these tasks wait for each other: a, b, a", "cycle")
INVALID_REF = bad_request("invalid 'ref'", "invalid-ref").because(
    "use 1 to 64 of A-Za-z0-9._-, each once"
)
OWN_KEY = bad_request("invalid task of a graph", "invalid-graph").because(
    "the graph has an idempotencyKey, its tasks have none; a member of a group is created by itself"
)
TOO_MANY_EDGES = bad_request("invalid graph", "invalid-graph").because(
    f"at most {GRAPH_EDGES_MAX} dependencies in all"
)
_DIGEST_BYTES = 16
_CONFLICT = from_rejection(Rejected(Rejection.IDEMPOTENCY_CONFLICT))


class NodeBody(TaskBody):
    """A task of a graph."""

    ref: str | None = field(
        "Its name in this request, by which others wait for it and find it in their `inputs`.",
        pattern=f"^{REF.pattern}$",
        refused=(INVALID_REF, OWN_KEY, CYCLE, TOO_MANY_EDGES),
    )


NODE_SCHEMA = Schema(NodeBody)


class GraphBody(Body):
    """Tasks of which some wait for others."""

    tasks: list[Raw] | None = field(
        f"The tasks, at most {NODES_MAX}, all or none; in any order.",
        each=NODE_SCHEMA,
        all_or_none=True,
        required=True,
        minItems=1,
        max_length=NODES_MAX,
        refused=(too_many("tasks", NODES_MAX),),
    )
    idempotency_key: str | None = field(
        "A repeated request with the same key returns the first one's tasks.",
        refused=(key_too_long, _CONFLICT),
    )


_GRAPH = Schema(GraphBody)


class GraphView(Struct):
    """The tasks of a graph, in the order of the request; those deleted since are left out."""

    tasks: list[TaskView]


class DependencyView(Struct, rename={"run_if": "runIf", "on_dead": "onDead", "otherwise": "else"}):
    """A task that another waits for, or has waited for.

    `status` is what is known of it on the shard of the one that waits: empty until it has ended.
    `verdict` is `waits`, `met` or `impossible`.
    """

    id: str
    name: str
    run_if: str
    otherwise: str
    on_dead: str
    status: str
    verdict: str


class NodeView(Struct, rename="camel"):
    """A task of a graph, with what it waits for; of a deleted one only the id is left."""

    id: str
    command: str = ""
    status: str = "DELETED"
    last_known_location: str = "NONE"
    error: str = ""
    depends_on: list[DependencyView] = []


class NeighboursView(Struct):
    """A task and those that its edges lead to, the nearest first."""

    tasks: list[NodeView]


_SHOWN = NodeView(
    TASK_ID,
    TASK.command,
    TASK.status,
    "HELD_SET",
    depends_on=[
        DependencyView(
            "3f1c9a52-0d44-4c1e-8a77-b60f2d9e5131",
            "fetch",
            "succeeded",
            "cancel",
            "hold",
            "",
            "waits",
        )
    ],
)


@ROUTES(
    "POST",
    "/tasks/graph",
    Answer("The tasks: new ones, or those of the same request.", GraphView([TASK]), status=202),
    body=_GRAPH,
    example={
        "tasks": [
            {"ref": "a", "command": "fetch", "payload": {}},
            {"ref": "b", "command": "parse", "payload": {}, "dependsOn": ["a"]},
        ]
    },
    errors=(
        rate_limited(*CREATING),
        budget_exceeded("readyTasks", "create_task"),
        budget_exceeded("storedBytes", "create_task"),
        lambda node: from_failure(too_many_queues(node.limits.queues_max)),
        TOO_EARLY,
    ),
)
async def create(call: Call) -> HttpAnswer[GraphView]:
    """Create tasks of which some wait for others: all of them, or none.

    Each may wait for others of the request by `ref`, and for tasks that are there by id. A claim
    hands out in `inputs` how they have ended.
    """
    TOO_EARLY.check(call)
    body = _GRAPH.decode(call.text)
    if not body.tasks:
        raise _GRAPH.unreadable.because("tasks is missing or empty")
    key = body.idempotency_key or ""
    if len(key.encode()) > call.services.settings.limits.idempotency_key_bytes_max:
        raise key_too_long(call.services.settings)
    most = call.most(Scope.PRODUCER)
    if most and len(body.tasks) > most:
        raise too_many("tasks", most)
    await call.spend(*CREATING, len(body.tasks))
    call.weigh(2 * len(body.tasks))  # Their edges are as much again.
    nodes = await _nodes(call, [*each_of("tasks", body.tasks, NODE_SCHEMA.decode)])
    digest = blake2b(call.text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    graphs = call.services.broker.graphs
    outcome = await graphs.create(caller(call), nodes, key=key, digest=digest)
    if isinstance(outcome, Rejected):
        raise refused(outcome)
    payloads = [node.create.payload for node in nodes]
    if len(payloads) > len(outcome.tasks):
        payloads = [""] * len(outcome.tasks)  # Some are deleted, so the others have no place.
    shards = call.services.settings.shards
    views = [
        task_view(task, payload, shards=shards)
        for task, payload in zip(outcome.tasks, payloads, strict=True)
    ]
    return reply(GraphView(views), status=202)


@ROUTES(
    "GET",
    "/tasks/{id}/graph",
    Answer(f"At most {NEIGHBOURS_MAX} tasks.", NeighboursView([_SHOWN])),
    access=Access.TENANT,
    errors=(NO_TASK,),
)
async def neighbours(call: Call) -> HttpAnswer[NeighboursView]:
    """Return a task, what it waits for, and who waits for it, as far as edges lead."""
    task_id = call.task_id(not_found=NO_TASK)
    found = await call.services.broker.graphs.neighbours(caller(call), task_id)
    if found is None:
        raise NO_TASK
    return reply(NeighboursView(list(map(_node_view, found))))


async def _nodes(call: Call, bodies: Sequence[NodeBody]) -> list[AskedNode]:
    """Return the tasks that a body asks for; raises ApiError if they are no graph."""
    refs = {body.ref: place for place, body in enumerate(bodies) if body.ref is not None}
    named = [body.ref for body in bodies if body.ref is not None]
    if len(refs) < len(named) or not all(map(REF.fullmatch, named)):
        raise INVALID_REF
    webhooks = await refused_webhooks(call, bodies)

    def read(body: NodeBody) -> AskedNode:
        create = new_task(call, body, refused=webhooks, may_depend=True)
        if create.idempotency_key or body.group:
            raise OWN_KEY
        return AskedNode(create, read_depends_on(body.depends_on, refs))

    nodes = [*each_of("tasks", bodies, read)]
    if sum(len(node.of) for node in nodes) > GRAPH_EDGES_MAX:
        raise TOO_MANY_EDGES
    _refuse_cycle(bodies, nodes)
    return nodes


def _refuse_cycle(bodies: Sequence[NodeBody], nodes: Sequence[AskedNode]) -> None:
    waits = {
        place: [each.position for each in node.of if each.position is not None]
        for place, node in enumerate(nodes)
    }
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        names = ", ".join(str(bodies[place].ref) for place in error.args[1])
        raise ApiError(400, f"these tasks wait for each other: {names}", "cycle") from error


def _node_view(of: Neighbour) -> NodeView:
    if of.task is None:
        return NodeView(of.id)
    view = task_view(of.task, "", shards=1)
    waits_for = of.row.of if of.row is not None else ()
    return NodeView(
        of.id,
        view.command,
        view.status,
        view.last_known_location,
        view.error,
        list(map(_dependency_view, waits_for)),
    )


def _dependency_view(of: Dependency) -> DependencyView:
    return DependencyView(
        id=of.parent,
        name=of.name,
        run_if=of.terms.run_if.value,
        otherwise=of.terms.otherwise.value,
        on_dead=of.terms.on_dead.value,
        status=of.status,
        verdict=of.verdict.value,
    )
