"""Lifecycle: the table has exactly the transitions that operations can make."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from codeq_cluster.core.bulk import STEP_MS, ActionKind, BulkAction, StartBulk
from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.decide import decide
from codeq_cluster.core.dependencies import (
    CreateDependent,
    CreateGraph,
    Ended,
    Need,
    Node,
    Otherwise,
    Resolve,
    Terms,
)
from codeq_cluster.core.durable import CLEARED_MAX, Park, RecordStep, SendSignal
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.groups import AddMembers, CancelGroup, CreateGroup, SealGroup
from codeq_cluster.core.holds import HoldKey, HoldLimit, HoldQueue, Nack
from codeq_cluster.core.lane import FlowRule, OnRetry, PerKey, SetFlow
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged, CreateUnique
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Finish,
    Heartbeat,
    Operation,
    Purge,
    Requeue,
    Revise,
    Staging,
    Submit,
    UndoRequeue,
)
from codeq_cluster.core.progress import Progress
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.reject import Reject
from codeq_cluster.core.relays import Relayed, RelayedCancel, RelayedTask, TakeRelays
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import (
    Backfill,
    BackfillSchedule,
    Due,
    FillBack,
    Fire,
    Overlap,
    Plan,
    PutSchedule,
    ResumeSchedule,
    Schedule,
    Timing,
    TriggerSchedule,
)
from codeq_cluster.core.selecting import Selection
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Membership, More, Until
from codeq_cluster.core.unique import On, UniqueTerms
from docs.tools.transitions import ARROWS, Arrow, arrow_of, is_note
from tests.fakes.dict_view import DictView

RULES = LifetimeRules()
MINUTE_MS = 60_000
FOR_GOOD_MS = max(RULES.retention_ms, RULES.dlq_retention_ms)

HELD = {"id": "t", "tenant": "acme", "worker": "ann"}
CLAIM = Claim(
    request="c", tenant="acme", worker="ann", commands=("render",), count=1, lease_ms=MINUTE_MS
)
HEARTBEAT = Heartbeat(**HELD, extend_ms=2 * MINUTE_MS)
REPORT = Report(**HELD, extend_ms=MINUTE_MS, progress=Progress(done=1), checkpoint="7")
UPLOAD = Staging(**HELD, upload="u")
ABANDON = Abandon(**HELD, request="a")
NACK = Nack(**HELD, request="n", delay_ms=MINUTE_MS)
REJECT = Reject(**HELD, request="r")
DONE = Submit(**HELD, request="s", status="COMPLETED", body="{}")
FAILED = Submit(**HELD, request="s", status="FAILED", error="broken")
CANCEL = Cancel(request="x", id="t", tenant="acme")
REQUEUE = Requeue(request="r", tenant="acme", ids=("t",), by="ops")
PURGE = Purge(request="p", tenant="acme", queue="render", ids=("t",), by="ops")
REVISE = Revise(request="v", tenant="acme", id="t", by="ops", payload="[]", endings=1)
UNDO_REQUEUE = UndoRequeue(request="b", tenant="acme", ids=("t",), by="ops", requeue="r")
DELETE = Delete(request="d", tenant="acme", ids=("t",), by="ops")


def created_keyed(
    name: str = "t", *, attempts: int = 3, delay_ms: int = 0, ttl_ms: int = 0, priority: int = 0
) -> CreateKeyed:
    create = created(attempts=attempts, delay_ms=delay_ms, ttl_ms=ttl_ms)
    return CreateKeyed(replace(create, id=name, priority=priority, key="k"))


def created(*, attempts: int = 3, delay_ms: int = 0, ttl_ms: int = 0) -> Create:
    return Create(
        id="t",
        tenant="acme",
        command="render",
        payload="{}",
        max_attempts=attempts,
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
    )


FOLLOWING = tuple(Create(command="scan", payload="{}", delay_ms=each) for each in (0, MINUTE_MS))
DONE_WITH_NEXT = Finish(submit=DONE, next=FOLLOWING, digest="d", shards=1)
FAILED_WITH_NEXT = Finish(submit=FAILED, next=FOLLOWING, digest="d", shards=1)


def relayed(number: int, *, delay_ms: int) -> Relayed:
    create = Create(
        id=f"r{number}", tenant="acme", command="render", payload="{}", delay_ms=delay_ms
    )
    return Relayed(number, RelayedTask(create, More(parent_id="p", root_id="p")))


# One task of a key at once: "t" waits for another, or another takes its place.
ONE_AT_ONCE = SetFlow(FlowRule("acme", "render", 1, PerKey(on_retry=OnRetry.YIELD), 0))
LIMITED = SetFlow(
    FlowRule("acme", "render", 1, PerKey(rate=Rate(1)), 0, PerQueue(max_running=9), pinned="render")
)
SHARED = SetFlow(FlowRule("acme", "render", 1, PerKey(rate=Rate(1)), 0, None, "@api", "api"))
SHARES = SetFlow(FlowRule("acme", "@api", 1, None, 0, PerQueue(max_running=9)))
OTHER, ANOTHER = created_keyed("o"), created_keyed("p")
NACK_AT_ONCE = Nack(**HELD, request="n")
NEXT_OF_KEY = Finish(
    submit=replace(DONE, id="o"),
    next=tuple(Create(command="render", payload="{}", key="k") for _ in range(2)),
    digest="d",
    shards=1,
)
TAKE_KEYED = TakeRelays(
    origin=1,
    after=0,
    relays=tuple(
        Relayed(number, RelayedTask(created_keyed(f"r{number}").create, More()))
        for number in (1, 2)
    ),
)

TAKE_RELAYS = TakeRelays(
    origin=1, after=0, relays=(relayed(1, delay_ms=0), relayed(2, delay_ms=MINUTE_MS))
)

PLAN = Plan(timing=Timing(every="1m"), task=Create(command="render", payload="{}"))


def put(overlap: Overlap) -> PutSchedule:
    """Return a schedule that fires at 1, 2, 3, and so on."""
    return PutSchedule(
        request="put",
        tenant="acme",
        id="nightly",
        by="ops",
        plan=replace(PLAN, overlap=overlap),
        at_ms=0,
        next_ms=1,
        zone_rules="",
    )


def fire(view: DictView) -> Fire:
    """Fire the schedule's next instant."""
    schedule = view.items[ItemKind.SCHEDULE, "acme", "nightly"]
    assert isinstance(schedule, Schedule)
    return Fire(
        tenant="acme",
        id="nightly",
        generation=schedule.generation,
        version=schedule.version,
        from_ms=schedule.done_ms,
        runs=(Due(schedule.next_ms),),
        missed=0,
        done_ms=schedule.next_ms,
        next_ms=schedule.next_ms + 1,
        zone_rules="",
    )


def fill_back(view: DictView) -> FillBack:
    """Fire an instant of the backfill."""
    schedule = view.items[ItemKind.SCHEDULE, "acme", "nightly"]
    assert isinstance(schedule, Schedule)
    return FillBack(
        tenant="acme",
        id="nightly",
        generation=schedule.generation,
        from_ms=10,
        runs=(Due(11),),
        done_ms=20,
    )


def on_run(operation: Operation) -> Callable[[DictView], Operation]:
    """Return an operation on the run that is open."""

    def named(view: DictView) -> Operation:
        [run] = (task.id for task in view.tasks.values() if not task.state.terminal)
        if isinstance(operation, Purge):
            return replace(operation, ids=(run,))
        return replace(operation, id=run)

    return named


ONE_TRY = replace(PLAN, task=replace(PLAN.task, max_attempts=1))
TRIGGER = TriggerSchedule(
    request="t", tenant="acme", id="nightly", by="ops", name="t", at_ms=5, overlap=Overlap.CANCEL
)
BACKFILL = BackfillSchedule(
    request="b",
    tenant="acme",
    id="nightly",
    by="ops",
    backfill=Backfill(name="b", done_ms=10, to_ms=20, overlap=Overlap.QUEUE),
)
BACKFILL_BY_CANCEL = replace(BACKFILL, backfill=replace(BACKFILL.backfill, overlap=Overlap.CANCEL))
QUEUED = (put(Overlap.QUEUE), fire, fire, CLAIM)
QUEUED_ONCE = (
    replace(put(Overlap.QUEUE), plan=replace(ONE_TRY, overlap=Overlap.QUEUE)),
    fire,
    fire,
)
FAILING_ONCE = (
    replace(put(Overlap.QUEUE), plan=replace(PLAN, overlap=Overlap.QUEUE, pause_after=1)),
    fire,
    fire,
)
RESUME = ResumeSchedule(
    request="g",
    tenant="acme",
    id="nightly",
    by="ops",
    catch_up=False,
    at_ms=9,
    next_ms=10,
    zone_rules="",
)
DELAYING = replace(NACK, delay_ms=MINUTE_MS)

KEYED = replace(PLAN, task=replace(PLAN.task, key="k"))


def put_keyed(overlap: Overlap) -> PutSchedule:
    """Return a schedule whose runs have a key."""
    return replace(put(overlap), plan=replace(KEYED, overlap=overlap))


CANCEL_RELAYED = TakeRelays(
    origin=1,
    after=2,
    relays=(
        Relayed(3, RelayedCancel("acme", "r1", "x")),
        Relayed(4, RelayedCancel("acme", "r2", "x")),
    ),
)

MEMBER = Create(command="render", payload="{}", max_attempts=1)
KEYED_MEMBER = replace(MEMBER, key="k")
LATE_MEMBER = replace(MEMBER, delay_ms=MINUTE_MS)
GROUP = CreateGroup(
    tenant="acme",
    id="g",
    digest="",
    then=Create(command="report", payload="{}"),
    tasks=(MEMBER,),
    seal=True,
)
NAMED_GROUP = {"tenant": "acme", "id": "g"}
EMPTY_GROUP = replace(GROUP, tasks=(), seal=False)
ADDED = AddMembers(**NAMED_GROUP, name="1", tasks=(MEMBER, LATE_MEMBER))
SEAL_GROUP, CANCEL_GROUP = SealGroup(**NAMED_GROUP), CancelGroup(**NAMED_GROUP)


def relayed_members(number: int, *, key: str = "") -> TakeRelays:
    """Relay a member that starts at once, one that starts later, and one that is claimed."""
    delays = {"r": 0, "s": MINUTE_MS, "t": 0}
    relays = tuple(
        Relayed(
            position,
            RelayedTask(
                replace(MEMBER, id=name, tenant="acme", delay_ms=delay_ms, key=key),
                More(member=Membership(group="g", generation=1, name=name)),
            ),
        )
        for position, (name, delay_ms) in enumerate(delays.items(), number)
    )
    return TakeRelays(origin=1, after=0, relays=relays)


UNWANTED = TakeRelays(
    origin=1,
    after=0,
    relays=tuple(
        Relayed(position, RelayedCancel("acme", name, "g"))
        for position, name in enumerate("rst", 4)
    ),
)

# "d" waits for "t"; with a shard of its own it is told of "r", and its parent's end is relayed.
DEPENDENT = replace(created(), id="d")
LATE_DEPENDENT = replace(DEPENDENT, delay_ms=2 * MINUTE_MS)
ON_T = (Need(parent="t", name="t"),)
OR_DEAD = (Need(parent="t", name="t", terms=Terms(otherwise=Otherwise.DEAD_LETTER)),)


def graph(create: Create, needs: tuple[Need, ...] = ON_T) -> CreateGraph:
    """Return a graph of one task."""
    return CreateGraph(tenant="acme", shard=0, nodes=(Node(create, needs),))


def resolved(status: str) -> TakeRelays:
    """Tell the dependent of its parent, as another shard does."""
    resolve = Resolve(tenant="acme", parent="t", dependent="d", ended=Ended(status=status))
    return TakeRelays(origin=1, after=0, relays=(Relayed(1, resolve),))


def unique(name: str, *, delay_ms: int = 0, once: str = "", key: str = "") -> CreateUnique:
    """Return a create that replaces one of its unique key; the key is held for an hour."""
    terms = UniqueTerms(key="u", on=On.REPLACE, until=Until.THROTTLE, throttle_ms=60 * MINUTE_MS)
    create = replace(
        created(), id=name, delay_ms=delay_ms, idempotency_key=once, key=key, unique=terms
    )
    return CreateUnique(create)


ASK_CANCEL = AskCancel(request="x", id="t", tenant="acme", grace_ms=1000)
WAIT = Park(**HELD, step="w", signal="go", extend_ms=MINUTE_MS)
OVER = Park(**HELD, step="o", until_ms=1, extend_ms=MINUTE_MS)
GO = SendSignal(request="s", id="t", tenant="acme", name="go", payload="1")
# More than one decision deletes.
MANY = tuple(
    RecordStep(**HELD, name=str(number), value="1", extend_ms=MINUTE_MS)
    for number in range(CLEARED_MAX + 1)
)
LATER, SOONER = unique("t", delay_ms=MINUTE_MS), unique("v")


def tagged(*, delay_ms: int = 0) -> CreateTagged:
    """Return a create with a tag."""
    return CreateTagged(replace(created(delay_ms=delay_ms), tags=(("env", "test"),)))


def bulk(kind: ActionKind) -> StartBulk:
    """Begin a job on all tasks."""
    action = BulkAction(kind=kind, priority=7)
    return StartBulk(
        request="j", tenant="acme", id="j", by="ops", select=Selection(), action=action
    )


# A step is an operation, or makes one of the state; a number is passing time in milliseconds.
STORIES: tuple[tuple[Operation | int | Callable[[DictView], Operation], ...], ...] = (
    (created(), CLAIM, DONE, CreateDependent(Node(DEPENDENT, ON_T))),
    (created(), CLAIM, DONE, CreateDependent(Node(LATE_DEPENDENT, ON_T))),
    (created(), CLAIM, DONE, graph(DEPENDENT), graph(replace(LATE_DEPENDENT, id="e"))),
    (created(), graph(LATE_DEPENDENT), CLAIM, DONE, 1),
    (created(), graph(DEPENDENT, OR_DEAD), CLAIM, FAILED, 1),
    (ONE_AT_ONCE, created(), OTHER, graph(replace(DEPENDENT, key="k")), CLAIM, DONE, 1),
    (created(), graph(DEPENDENT, OR_DEAD), resolved("FAILED")),
    (GROUP, CLAIM, on_run(DONE)),
    (GROUP, on_run(CANCEL)),
    (GROUP, on_run(PURGE)),
    (GROUP, CLAIM, on_run(ABANDON)),
    (GROUP, CLAIM, on_run(NACK)),
    (GROUP, CLAIM, MINUTE_MS),
    (EMPTY_GROUP, SEAL_GROUP),
    (EMPTY_GROUP, CANCEL_GROUP),
    (replace(GROUP, tasks=(LATE_MEMBER,)), CANCEL_GROUP, 1),
    (EMPTY_GROUP, ADDED, CANCEL_GROUP, 1),
    (GROUP, CLAIM, CANCEL_GROUP, 1),
    (EMPTY_GROUP, replace(ADDED, tasks=(MEMBER,)), CLAIM, on_run(DONE), FOR_GOOD_MS // 7),
    (EMPTY_GROUP, replace(ADDED, tasks=(MEMBER,)), on_run(CANCEL), FOR_GOOD_MS // 7),
    (relayed_members(1), CLAIM, UNWANTED),
    (ONE_AT_ONCE, relayed_members(1, key="k"), UNWANTED),
    (ONE_AT_ONCE, replace(GROUP, tasks=(KEYED_MEMBER, KEYED_MEMBER)), CANCEL_GROUP, 1),
    (ONE_AT_ONCE, EMPTY_GROUP, replace(ADDED, tasks=(KEYED_MEMBER, KEYED_MEMBER))),
    (*QUEUED, on_run(DONE)),
    (*QUEUED, on_run(CANCEL)),
    (*QUEUED[:-1], on_run(PURGE)),
    (*QUEUED_ONCE, CLAIM, on_run(ABANDON)),
    (*QUEUED_ONCE, CLAIM, on_run(NACK)),
    (*QUEUED_ONCE, CLAIM, on_run(REJECT)),
    (*QUEUED_ONCE, CLAIM, MINUTE_MS),
    (*FAILING_ONCE, CLAIM, on_run(FAILED), RESUME),
    (put(Overlap.CANCEL), fire, fire, CLAIM, fire, CLAIM, on_run(DELAYING), fire),
    (put(Overlap.SKIP), TRIGGER, replace(TRIGGER, name="u"), CLAIM, replace(TRIGGER, name="v")),
    (put(Overlap.SKIP), TRIGGER, CLAIM, on_run(DELAYING), replace(TRIGGER, name="u")),
    (put(Overlap.SKIP), BACKFILL, fill_back),
    (ONE_AT_ONCE, created_keyed(), put_keyed(Overlap.CANCEL), fire, fire),
    (TAKE_RELAYS, CANCEL_RELAYED),
    (TAKE_RELAYS, CLAIM, CANCEL_RELAYED),
    (put(Overlap.SKIP), TRIGGER, BACKFILL_BY_CANCEL, fill_back),
    (put(Overlap.SKIP), TRIGGER, CLAIM, BACKFILL_BY_CANCEL, fill_back),
    (put(Overlap.SKIP), TRIGGER, CLAIM, on_run(DELAYING), BACKFILL_BY_CANCEL, fill_back),
    (created(), CLAIM, HEARTBEAT, REPORT, UPLOAD, DONE, FOR_GOOD_MS),
    (created(delay_ms=MINUTE_MS), MINUTE_MS, CLAIM, FAILED, FOR_GOOD_MS),
    (created(), CLAIM, ABANDON, CLAIM, NACK, CANCEL, DELETE),
    (created(), CLAIM, MINUTE_MS, CANCEL),
    (created(), CLAIM, CANCEL),
    (created(), ASK_CANCEL),
    (created(delay_ms=MINUTE_MS), ASK_CANCEL),
    (ONE_AT_ONCE, OTHER, created_keyed(), ASK_CANCEL),
    (created(), CLAIM, replace(ASK_CANCEL, grace_ms=0)),
    (created(), CLAIM, ASK_CANCEL, ABANDON),
    (created(), CLAIM, ASK_CANCEL, NACK),
    (created(), CLAIM, REJECT),
    (created(), CLAIM, ASK_CANCEL, REJECT),
    (created(), CLAIM, ASK_CANCEL, MINUTE_MS),
    (ONE_AT_ONCE, created_keyed(), CLAIM, ASK_CANCEL, HoldKey(nack=NACK)),
    (LIMITED, created(), CLAIM, ASK_CANCEL, HoldQueue(nack=NACK)),
    (LIMITED, created(), CLAIM, HoldQueue(nack=NACK)),
    (LIMITED, created_keyed(), CLAIM, HoldQueue(nack=NACK)),
    (SHARES, SHARED, created(), CLAIM, ASK_CANCEL, HoldLimit(nack=NACK)),
    (SHARES, SHARED, created(), CLAIM, HoldLimit(nack=NACK)),
    (SHARES, SHARED, created_keyed(), CLAIM, HoldLimit(nack=NACK)),
    (GROUP, on_run(ASK_CANCEL)),
    (created(attempts=1), CLAIM, ABANDON, REQUEUE, CLAIM, NACK, DELETE),
    (created(attempts=1), CLAIM, MINUTE_MS, FOR_GOOD_MS),
    (created(ttl_ms=MINUTE_MS), MINUTE_MS),
    (created(ttl_ms=MINUTE_MS, delay_ms=2 * MINUTE_MS), MINUTE_MS),
    (created(), CLAIM, DONE, DELETE),
    (created(), PURGE),
    (created(delay_ms=MINUTE_MS), PURGE),
    (created(attempts=1), CLAIM, ABANDON, REQUEUE, UNDO_REQUEUE),
    (created(attempts=1), CLAIM, ABANDON, REVISE),
    (created(), CLAIM, DONE_WITH_NEXT),
    (created(), CLAIM, FAILED_WITH_NEXT),
    (TAKE_RELAYS,),
    (ONE_AT_ONCE, created_keyed(delay_ms=MINUTE_MS), OTHER, MINUTE_MS, CANCEL),
    (ONE_AT_ONCE, OTHER, created_keyed(), PURGE),
    (ONE_AT_ONCE, OTHER, created_keyed(ttl_ms=MINUTE_MS), MINUTE_MS),
    (ONE_AT_ONCE, created_keyed(), created_keyed("o", priority=9), CLAIM),
    (ONE_AT_ONCE, created_keyed(), CLAIM, OTHER, MINUTE_MS),
    (ONE_AT_ONCE, created_keyed(), CLAIM, OTHER, ABANDON),
    (ONE_AT_ONCE, created_keyed(), CLAIM, HoldKey(nack=NACK)),
    (ONE_AT_ONCE, created_keyed(attempts=1), CLAIM, OTHER, ABANDON, REQUEUE, UNDO_REQUEUE),
    (ONE_AT_ONCE, created_keyed(attempts=1), CLAIM, OTHER, ABANDON, REVISE),
    (ONE_AT_ONCE, OTHER, CLAIM, NEXT_OF_KEY),
    (ONE_AT_ONCE, TAKE_KEYED),
    (unique("t"), 1, SOONER, unique("w", delay_ms=MINUTE_MS)),
    (LATER, 1, replace(LATER, create=replace(LATER.create, id="v")), unique("w")),
    (ONE_AT_ONCE, OTHER, unique("t", delay_ms=MINUTE_MS, key="k"), unique("v", key="k")),
    (unique("t"), CLAIM, DONE, 1, unique("v", once="i")),
    (unique("t"), CLAIM, FAILED, 1, unique("v", once="i")),
    (created(), CLAIM, 1, MANY[0], 1, OVER, WAIT, GO),
    (ONE_AT_ONCE, created_keyed(), CLAIM, WAIT, OTHER, CLAIM, GO),
    (tagged(),),
    (tagged(delay_ms=MINUTE_MS),),
    (created(attempts=1), CLAIM, ABANDON, bulk(ActionKind.REQUEUE), 2 * STEP_MS),
    (
        *(ONE_AT_ONCE, created_keyed(attempts=1), CLAIM, OTHER, ABANDON),
        *(bulk(ActionKind.REQUEUE), 2 * STEP_MS),
    ),
    (created(), bulk(ActionKind.PRIORITY), 2 * STEP_MS),
    (created(delay_ms=MINUTE_MS), bulk(ActionKind.PRIORITY), 2 * STEP_MS),
    (created(), CLAIM, *MANY, DONE, DELETE, RULES.retention_ms),
    (created(), CLAIM, *MANY, FAILED, DELETE, RULES.retention_ms),
    (created(attempts=1), CLAIM, *MANY, ABANDON, DELETE, RULES.dlq_retention_ms),
    (created(), CLAIM, *MANY, DONE, RULES.retention_ms),
    (created(), CLAIM, *MANY, FAILED, RULES.retention_ms),
    (created(attempts=1), CLAIM, *MANY, ABANDON, RULES.dlq_retention_ms),
)


def drawn(
    story: Iterable[Operation | int | Callable[[DictView], Operation]], rules: LifetimeRules
) -> set[Arrow | None]:
    """Return the arrows that a story draws."""
    view = DictView(now_ms=1_000_000)
    found: set[Arrow | None] = set()
    for step in story:
        operation = step
        if isinstance(operation, int):
            view.now_ms += operation
            operation = Advance(count=10)
        elif callable(step):
            operation = step(view)
        decision = decide(view, operation, rules)
        view.advance(decision.changes)
        found |= {
            arrow_of(operation, change)
            for change in decision.changes
            if isinstance(change, TaskChange) and not is_note(change)
        }
    return found


def test_every_arrow_of_the_table_can_be_drawn() -> None:
    """Some need other rules: a nack without backoff, or dead letters that are kept for a day."""
    at_once = LifetimeRules(backoff_base_ms=0, backoff_max_ms=0)
    dead_for_a_day = LifetimeRules(dlq_retention_ms=RULES.retention_ms)
    found = set().union(
        *(drawn(story, RULES) for story in STORIES),
        drawn((created(), CLAIM, NACK_AT_ONCE), at_once),
        drawn((ONE_AT_ONCE, created_keyed(), CLAIM, OTHER, NACK_AT_ONCE), at_once),
        drawn((ONE_AT_ONCE, created_keyed(), CLAIM, HoldKey(nack=NACK_AT_ONCE)), at_once),
        drawn((EMPTY_GROUP, ADDED, CLAIM, MINUTE_MS, RULES.retention_ms), dead_for_a_day),
    )

    assert set(ARROWS) == found


def test_a_change_that_no_operation_makes_is_no_arrow() -> None:
    """A claim ends no task."""
    view = DictView(now_ms=1_000_000)
    for operation in (created(), CLAIM):
        view.advance(decide(view, operation, RULES).changes)
    ended = decide(view, DONE, RULES).changes[0]

    assert isinstance(ended, TaskChange)
    assert arrow_of(DONE, ended) in ARROWS
    assert arrow_of(CLAIM, ended) is None
