"""Bytes of the store and of the log, compared with the files beside this one.

A file has one line per value: its name, a tab, its bytes. A difference means that nodes of two
versions no longer understand each other's data: that must be decided, not discovered. To rewrite
the files after such a decision, and after giving the format its new version byte:

    GOLDEN_REWRITE=1 pytest tests/golden
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from codeq_cluster.codec import entries, keyspace, lane_keys, records
from codeq_cluster.codec.entries import Entry
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.codec.tag_keys import tag_keys
from codeq_cluster.core.bulk import ActionKind, BulkAction, BulkJob
from codeq_cluster.core.checkpoint import Checkpoint
from codeq_cluster.core.dependencies import (
    Dependencies,
    Dependency,
    Edge,
    Ended,
    GraphKey,
    Input,
    Need,
    OnDead,
    Otherwise,
    Resolve,
    RunIf,
    Terms,
    Walk,
    Watch,
)
from codeq_cluster.core.durable import Signal, Step, row_id
from codeq_cluster.core.gate import Gate, PerQueue
from codeq_cluster.core.groups import Group, Member, MemberEnded, NewMember, OnFailure, ThenIf
from codeq_cluster.core.handling import Handling
from codeq_cluster.core.items import (
    KIND_OF,
    Aside,
    Audit,
    Delivery,
    Item,
    Mode,
    Pause,
    Subscription,
    Sweep,
    Topic,
    WebhookKey,
)
from codeq_cluster.core.lane import (
    Flow,
    FlowRule,
    KeyRule,
    Lane,
    OnRetry,
    Order,
    OwnRule,
    PerKey,
    WhenDead,
    lane_id,
    lane_name,
)
from codeq_cluster.core.limit import Limit
from codeq_cluster.core.log_line import LogLine, line_id
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.progress import Progress
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.relays import Relay, RelayedCancel, RelayedTask, RelayLink
from codeq_cluster.core.schedules import (
    Backfill,
    Missed,
    Overlap,
    Plan,
    RunEnded,
    RunRow,
    Schedule,
    Timing,
)
from codeq_cluster.core.selecting import Selection, TaskFilter
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import Tally
from codeq_cluster.core.task import (
    Artifact,
    Attempt,
    AttemptOutcome,
    Cancelling,
    Counters,
    Durable,
    FollowUp,
    GroupCounts,
    Membership,
    More,
    Result,
    Role,
    Run,
    State,
    Task,
    Unique,
    Until,
)
from codeq_cluster.core.unique import Holder, How, Merged
from codeq_cluster.core.view import KeyRow

HERE = Path(__file__).parent
NOW_MS = 1_700_000_000_000
SEQ = NOW_MS << 20

HANDLING = Handling(
    timeout_ms=30_000, backoff="linear", backoff_base_ms=2_000, backoff_max_ms=60_000
)
TERMS = Terms(run_if=RunIf.ENDED, otherwise=Otherwise.DEAD_LETTER, on_dead=OnDead.FAIL)
PARENT_ENDED = Ended(status="FAILED", body="1", error="broken", left_out=True)
MEMBERSHIP = Membership(group="import-7", generation=SEQ, name="22222222")
MINIMAL = Task(
    id="11111111",
    tenant="",
    command="render",
    priority=0,
    max_attempts=5,
    created_ms=NOW_MS,
    updated_ms=NOW_MS,
    state=State.READY,
    seq=SEQ,
)
FULL = Task(
    id="22222222",
    tenant="acme",
    command="Render.Video",
    priority=9,
    max_attempts=3,
    created_ms=NOW_MS,
    updated_ms=NOW_MS + 1,
    state=State.LEASED,
    attempts=2,
    seq=0,
    due_ms=NOW_MS + 2,
    expires_ms=NOW_MS + 3,
    retain_until_ms=NOW_MS + 4,
    worker="worker-7",
    lease_until_ms=NOW_MS + 5,
    lease_token=2,
    claim="request-1",
    claimed_ms=NOW_MS + 6,
    error="größer",
    webhook="https://hooks.example/done",
    trace_parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    trace_state="a=b",
    idempotency_key="order/17",
    run_at_ms=NOW_MS + 7,
    ready_ms=NOW_MS + 8,
    ended_by="request-2",
    has_result=True,
    history=tuple(
        Attempt(
            worker="worker-3",
            started_ms=NOW_MS,
            ended_ms=NOW_MS + 9,
            outcome=outcome,
            error="busy",
            request="request-3",
            delay_ms=10,
            worker_name="resizer@host-1:7",
        )
        for outcome in AttemptOutcome
    ),
    payload_bytes=12,
    result_bytes=34,
    uploads=("upload-1", "upload-2"),
    endings=3,
    dead_queue="graves",
    handling=HANDLING,
    worker_name="host-1:7",
    upload_bytes=(56, 78),
    more=More(
        parent_id="11111111",
        root_id="33333333",
        run=Run(schedule="nightly", generation=SEQ, name="1", at_ms=NOW_MS, late=True),
        key="customer/7",
        cost=3,
        keeps_place=True,
        stops_key=True,
        member=MEMBERSHIP,
        completes=GroupCounts(id="import-6", total=10, completed=1, failed=2, cancelled=3, dead=4),
        unique=Unique(
            key="user:42",
            until=Until.THROTTLE,
            role=Role.FREE,
            throttle_ms=60_000,
            held_until_ms=NOW_MS,
            latest_ms=NOW_MS,
            start_ms=NOW_MS,
            revision=3,
            merged=2,
            merged_ms=NOW_MS,
        ),
        durable=Durable(
            steps=3,
            bytes=45,
            signals=2,
            unread=1,
            parked_at="wait",
            keeps_key=True,
            lines=2,
            line_bytes=30,
            logged=41,
        ),
        progress=Progress(done=3, total=10, note="größe", at_ms=NOW_MS),
        checkpoint_bytes=10,
        cancelling=Cancelling(
            reason="größe", deadline_ms=NOW_MS, dependents=True, request="request-4"
        ),
        tags=(("env", "prod"), ("user", "größe/42")),
        metadata='{"page":7}',
        slotless=True,
    ),
)
HELD = Task(
    id="66666666",
    tenant="acme",
    command="Render",
    priority=9,
    max_attempts=5,
    created_ms=NOW_MS,
    updated_ms=NOW_MS,
    state=State.HELD,
    seq=SEQ,
    more=More(key="customer/7", cost=3),
)
RULE = PerKey(
    max_running=2,
    order=Order.FIFO,
    on_retry=OnRetry.YIELD,
    when_dead=WhenDead.STOP,
    rate=Rate(100, 60, 10),
)
OWN = OwnRule(max_running=3, rate=Rate(5, 1, 2), weight=4, paused=True)
RESULT = Result(
    task_id="22222222",
    status="COMPLETED",
    body='{"n": 1e400}',
    error="",
    artifacts=(Artifact("log.txt", "https://files.example/log.txt"),),
    completed_ms=NOW_MS,
    worker="worker-7",
    request="request-4",
    next=(FollowUp("33333333"), FollowUp(key="order/18")),
    next_digest="0123456789abcdef0123456789abcdef",
)
ITEMS: dict[str, Item] = {
    "topic": Topic(
        tenant="acme",
        id="render.video",
        name="Render.Video",
        version=2,
        priority_tiers=(1, 5, 10),
        max_attempts=7,
        dead_letter="graves",
        retention_s=3600,
        max_consumers=8,
        weight=100,
        created_ms=NOW_MS,
        updated_ms=NOW_MS + 1,
        request="request-5",
        handling=HANDLING,
        per_key=RULE,
        rule_seq=SEQ,
    ),
    "pause": Pause(tenant="", id="render", by="ops", since_ms=NOW_MS, request="request-6"),
    **{
        f"{mode.value} subscription": Subscription(
            tenant="acme",
            id="44444444",
            worker="worker-7",
            callback_url="https://worker.example/notices",
            event_types=("render", "Scan"),
            mode=mode,
            group_id="g1",
            ttl_ms=300_000,
            min_interval_ms=5_000,
            created_ms=NOW_MS,
            expires_ms=NOW_MS + 300_000,
        )
        for mode in Mode
    },
    "pending delivery": Delivery(
        tenant="acme",
        id="22222222.1",
        task_id="22222222",
        command="Render.Video",
        url="https://hooks.example/done",
        created_ms=NOW_MS,
        due_ms=NOW_MS + 2,
        trace_parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        trace_state="a=b",
        since_ms=NOW_MS,
    ),
    "dead delivery": Delivery(
        tenant="acme",
        id="22222222.2",
        task_id="22222222",
        command="Render.Video",
        url="https://hooks.example/done",
        created_ms=NOW_MS,
        attempts=5,
        died_ms=NOW_MS + 3,
        expires_ms=NOW_MS + 4,
        error="503",
        replay="request-7",
        since_ms=NOW_MS + 1,
        tags=(("env", "prod"),),
        metadata='{"page":7}',
    ),
    "sweep": Sweep(
        tenant="",
        id="22222222.upload-1",
        task_id="22222222",
        upload="upload-1",
        due_ms=NOW_MS + 5,
        attempts=1,
    ),
    "webhook key": WebhookKey(
        tenant="acme",
        version=3,
        previous_until_ms=NOW_MS + 1,
        rotated_ms=NOW_MS,
        request="request-9",
    ),
    "relay": Relay(
        tenant="acme",
        id="22222222.1.0",
        task_id="22222222",
        effect=RelayedTask(
            Create(
                id="55555555",
                tenant="acme",
                command="Render",
                payload='{"n":1}',
                idempotency_key="k",
                fingerprint="f",
            ),
            More(parent_id="22222222", root_id="11111111"),
        ),
        to=2,
        number=SEQ + 1,
        created_ms=NOW_MS,
    ),
    "relay of a graph's task": Relay(
        tenant="acme",
        id="22222222.0.103",
        task_id="22222222",
        effect=RelayedTask(
            Create(id="55555555", tenant="acme", command="Render", payload="1", key="eu"),
            More(),
            (
                Need(parent="33333333", name="a", terms=Terms(run_if=RunIf.ENDED)),
                Need(parent="44444444", name="b", ended=Ended(status="COMPLETED", body="7")),
            ),
        ),
        to=2,
        number=SEQ + 3,
        created_ms=NOW_MS,
    ),
    "relay link": RelayLink(id="to.2", number=SEQ, recalled_ms=NOW_MS),
    "relayed end of a run": Relay(
        tenant="acme",
        id="22222222.1.100",
        task_id="22222222",
        effect=RunEnded(
            tenant="acme",
            run=Run(schedule="nightly", generation=SEQ, name="1", at_ms=NOW_MS),
            status="COMPLETED",
            ended_ms=NOW_MS,
        ),
        to=2,
        number=SEQ + 2,
        created_ms=NOW_MS,
    ),
    "relayed end of a run that another replaces": Relay(
        tenant="acme",
        id="22222222.1.100",
        task_id="22222222",
        effect=RelayedCancel("acme", "33333333", "request-9"),
        to=2,
        number=SEQ + 3,
        created_ms=NOW_MS,
    ),
    "schedule": Schedule(
        tenant="acme",
        id="nightly",
        plan=Plan(
            timing=Timing(
                cron="30 2 * * *", zone="Europe/Berlin", start_ms=1, end_ms=NOW_MS + 10**9
            ),
            task=Create(command="Report", payload='{"n":1}', priority=5),
            overlap=Overlap.QUEUE,
            missed=Missed.ALL,
            window_s=3600,
            jitter_s=60,
            max_runs=1000,
            pause_after=3,
            owner="app",
            note="every night",
        ),
        generation=SEQ,
        version=2,
        done_ms=NOW_MS,
        next_ms=NOW_MS + 7,
        last_ms=NOW_MS,
        last_local="2026-10-25T02:30:00",
        last_fold=1,
        made=2,
        caught_up=1,
        open=(RunRow(name="2", at_ms=2, task_id="11111111", late=True, made_ms=3),),
        queued=(RunRow(name="3", at_ms=3),),
        recent=(
            RunRow(
                name="1", at_ms=1, task_id="22222222", status="DEAD", ended_ms=NOW_MS, made_ms=2
            ),
        ),
        missed=4,
        skipped=5,
        failures=1,
        zone_rules="2026b",
        revision=6,
        backfill=Backfill(name="b", done_ms=1, to_ms=2, overlap=Overlap.ALLOW, force=True, made=1),
        created_ms=NOW_MS,
        updated_ms=NOW_MS,
        request="request-9",
    ),
    "small schedule": Schedule(
        tenant="",
        id="tick",
        plan=Plan(timing=Timing(every="1s"), task=Create(command="a", payload="1")),
        generation=1,
        next_ms=NOW_MS,
    ),
    "schedule tally": Tally(tenant="acme", count=2),
    "relayed rule of keys": Relay(
        tenant="acme",
        id=f"flow:{lane_name('render')}.{SEQ}.2",
        task_id=f"flow:{lane_name('render')}",
        effect=FlowRule(tenant="acme", queue="render", seq=SEQ, per_key=RULE, shard=2),
        to=2,
        number=SEQ + 3,
        created_ms=NOW_MS,
    ),
    "flow": Flow(
        tenant="acme",
        id="render",
        seq=SEQ,
        per_key=RULE,
        walked=lane_name("customer/7"),
        expires_ms=NOW_MS,
    ),
    "limited flow": Flow(
        tenant="acme",
        id="render",
        seq=SEQ,
        per_queue=PerQueue(max_running=9, rate=Rate(100, 60, 10)),
        pinned="@api",
        limit="api",
    ),
    "limit": Limit(
        tenant="acme",
        id="api",
        name="API",
        rule=PerQueue(max_running=9, rate=Rate(100, 60, 10)),
        rule_seq=SEQ,
        version=2,
        created_ms=NOW_MS,
        updated_ms=NOW_MS + 1,
        request="r",
    ),
    "gate": Gate(
        tenant="acme",
        id="render",
        spent_us=NOW_MS * 1000 + 9,
        opens_ms=NOW_MS,
        tokens=2,
        expires_ms=NOW_MS,
        held_until_ms=NOW_MS,
    ),
    "lane": Lane(
        tenant="acme",
        id=lane_id("render", lane_name("customer/7")),
        key="customer/7",
        running=1,
        ready=2,
        kept=3,
        held=4,
        stopped_by="11111111",
        spent_us=NOW_MS * 1000 + 1,
        expires_ms=NOW_MS + 1,
        held_until_ms=NOW_MS + 2,
        own=OWN,
    ),
    "rule of a key": KeyRule(
        tenant="acme",
        id=lane_id("render", lane_name("customer/7")),
        key="customer/7",
        own=OWN,
        updated_ms=NOW_MS,
    ),
    "group tally": Tally(tenant="acme", id="groups", count=3),
    "group": Group(
        tenant="acme",
        id="import-7",
        generation=SEQ,
        then=Create(command="Report", payload='{"n":1}', priority=5),
        then_if=ThenIf.SUCCEEDED,
        on_failure=OnFailure.CANCEL,
        digest="0" * 32,
        rows=16,
        live=1,
        completed=2,
        failed=3,
        cancelled=4,
        dead=5,
        sealed_ms=NOW_MS,
        cancelled_ms=NOW_MS + 1,
        ended_ms=NOW_MS + 2,
        walked="22222222",
        reason="NOT_SEALED",
        then_id="33333333",
        created_ms=NOW_MS,
        expires_ms=NOW_MS + 3,
    ),
    "small group": Group(tenant="", id="a", generation=1, sealed_ms=1),
    "member": Member(
        tenant="acme",
        id="import-7:22222222",
        task_id="22222223",
        key="k",
        status="COMPLETED",
        ended_ms=NOW_MS,
    ),
    **{
        f"relayed {name}": Relay(
            tenant="acme",
            id=f"22222222.{number}",
            task_id="22222222",
            effect=effect,
            to=2,
            number=SEQ + 3,
            created_ms=NOW_MS,
        )
        for name, number, effect in (
            (
                "end of a member",
                "1.101",
                MemberEnded(
                    tenant="acme",
                    member=MEMBERSHIP,
                    task_id="22222222",
                    status="COMPLETED",
                    ended_ms=NOW_MS,
                ),
            ),
            (
                "new member",
                "1.0",
                NewMember(
                    create=Create(id="5", tenant="acme", command="a", payload="1"),
                    parent=MEMBERSHIP,
                    parent_id="22222222",
                    root_id="11111111",
                ),
            ),
        )
    },
    "dependencies": Dependencies(
        tenant="acme",
        id="22222222",
        of=(
            Dependency(parent="11111111", name="fetch", terms=TERMS, status="DEAD"),
            Dependency(parent="33333333", name="33333333"),
        ),
        start_ms=NOW_MS,
        asked=2,
        expires_ms=NOW_MS + 1,
    ),
    "small dependencies": Dependencies(tenant="", id="1", of=()),
    "edge": Edge(tenant="acme", id="11111111.22222222", terms=TERMS, done=True),
    "input": Input(
        tenant="acme", id="22222222.0", name="fetch", parent="11111111", ended=PARENT_ENDED
    ),
    "walk": Walk(
        tenant="acme",
        id="11111111",
        ended=PARENT_ENDED,
        gone=True,
        walked="22222222",
        expires_ms=NOW_MS,
    ),
    "step": Step(
        tenant="acme",
        id=row_id("22222222", "charge"),
        name="charge",
        number=1,
        position=2,
        value='{"charge":7}',
        at_ms=NOW_MS,
    ),
    "open step": Step(
        tenant="acme",
        id=row_id("22222222", "wait"),
        name="wait",
        number=2,
        at_ms=NOW_MS,
        signal="return",
        until_ms=NOW_MS,
        token=2,
        is_open=True,
    ),
    "signal": Signal(
        tenant="acme",
        id=row_id("22222222", "request-1"),
        name="return",
        seq=SEQ,
        digest="b" * 32,
        payload="{}",
        sent_ms=NOW_MS,
        is_read=True,
    ),
    "holder of a unique key": Holder(
        tenant="acme",
        id=lane_id("generate-master", lane_name("customer/7\0user:42")),
        task_id="22222222",
        next_id="33333333",
        expires_ms=NOW_MS,
    ),
    "merged create": Merged(
        tenant="acme",
        id="a" * 32,
        placed_by="generate-master/user:42",
        task_id="22222222",
        how=How.REPLACED,
        fingerprint="b" * 32,
        expires_ms=NOW_MS,
    ),
    "log line": LogLine(
        tenant="acme", id=line_id("22222222", 41), at_ms=NOW_MS, attempt=2, text="größe"
    ),
    "checkpoint": Checkpoint(tenant="acme", id="22222222", text='{"line":7}'),
    "bulk job": BulkJob(
        tenant="acme",
        id="stop-7",
        select=Selection(
            tags=(("user", "42"), ("env", "prod")),
            queue="render",
            states=(State.READY, State.HELD),
            only=TaskFilter(created_from_ms=1, created_before_ms=NOW_MS, schedule="s", group="g"),
        ),
        action=BulkAction(
            kind=ActionKind.TAG,
            reason="why",
            priority=7,
            put=(("seen", "yes"),),
            remove=("draft",),
        ),
        until_ms=NOW_MS,
        by="ops",
        request="request-9",
        walked=b"\xff/22222222",
        looked=300,
        selected=20,
        changed=7,
        stopped_by="ann",
        ended_ms=NOW_MS + 1,
        expires_ms=NOW_MS + 2,
        unreadable=3,
    ),
    "graph key": GraphKey(
        tenant="acme", id="a" * 32, digest="b" * 32, tasks=("11111111",), expires_ms=NOW_MS
    ),
    **{
        f"relayed {name}": Relay(
            tenant="acme",
            id=f"22222222.{number}.102",
            task_id="22222222",
            effect=effect,
            to=2,
            number=SEQ + 3,
            created_ms=NOW_MS,
        )
        for name, number, effect in (
            (
                "watch",
                1,
                Watch(tenant="acme", parent="11111111", dependent="22222222", terms=TERMS),
            ),
            (
                "resolve",
                2,
                Resolve(tenant="acme", parent="11111111", dependent="22222222", ended=PARENT_ENDED),
            ),
        )
    },
    "audit": Audit(
        tenant="acme",
        id="998300000000000-request-8",
        at_ms=NOW_MS,
        actor="ops",
        action="dlq.requeue",
        target="22222222",
        detail="3 on one shard",
        request="request-8",
        expires_ms=NOW_MS + 6,
        index=70_000,
    ),
    "aside": Aside(
        tenant="acme",
        id="task.11111111",
        timer=keyspace.ttl(NOW_MS, "11111111"),
        reason="AssertionError",
        since_ms=NOW_MS,
    ),
}
ENTRY = Entry(
    epoch=7,
    ordinal=300,
    clock_ms=NOW_MS,
    seq=SEQ,
    mutations={b"codeq/tasks/1": b"\x01\x02", b"codeq/q/a/_/inprog/1": b"", b"gone": None},
)


def _key_lines() -> dict[str, bytes]:
    return {
        "task": keyspace.task("11111111"),
        "payload": keyspace.payload("11111111"),
        "result": keyspace.result("11111111"),
        "pending": keyspace.pending("render", "", priority=9, seq=SEQ, task_id="11111111"),
        "pending of a tenant": keyspace.pending(
            "render", "acme", priority=0, seq=SEQ, task_id="11111111"
        ),
        "delayed": keyspace.delayed("render", "acme", due_ms=NOW_MS, task_id="11111111"),
        "inprog": keyspace.inprog("render", "acme", task_id="11111111"),
        **{
            place.value: keyspace.ended(
                place, "render", "acme", ended_ms=NOW_MS, task_id="11111111"
            )
            for place in (QueuePlace.DONE, QueuePlace.FAILED, QueuePlace.DLQ)
        },
        **{
            f"{kind.value} of {tenant or 'the default tenant'}": keyspace.item(
                kind, tenant, "55555555"
            )
            for kind in ItemKind
            for tenant in ("acme", "")
        },
        **{
            f"{name}, index {number}": key
            for name, item in ITEMS.items()
            for number, key in enumerate(keyspace.item_index_keys(item))
        },
        "body": keyspace.body("", "11111111.1"),
        "held": lane_keys.held(HELD),
        "slot of a ready task": lane_keys.slot_keys(replace(HELD, state=State.READY))[0],
        "slot of a leased task": lane_keys.slot_keys(_with_slot(FULL))[0],
        **dict(zip(("tag env", "tag user"), tag_keys(FULL), strict=True)),
        "lease": keyspace.lease(NOW_MS, "11111111"),
        "ttl": keyspace.ttl(NOW_MS, "11111111"),
        "claim": keyspace.claim("request-1", "11111111"),
        "idempotency": keyspace.idempotency("acme", "order/17"),
        "stats": keyspace.stats("render", ""),
        "meta": keyspace.meta("applied"),
    }


def _with_slot(task: Task) -> Task:
    """Return a leased task with a key as leaders left it at first."""
    assert task.more is not None
    return replace(task, more=replace(task.more, slotless=False))


def _record_lines() -> dict[str, bytes]:
    return {
        "minimal task": records.encode(MINIMAL),
        "full task": records.encode(FULL),
        "held task": records.encode(HELD),
        **{
            f"{state.name} task": records.encode(
                Task(
                    id="3",
                    tenant="",
                    command="a",
                    priority=0,
                    max_attempts=1,
                    created_ms=1,
                    updated_ms=1,
                    state=state,
                )
            )
            for state in State
        },
        "result": records.encode(RESULT),
        "idempotency row": records.encode(KeyRow("22222222", "fingerprint")),
        **{name: records.encode(item) for name, item in ITEMS.items()},
        "counters": records.encode(Counters(1, 200, 70_000, 5_000_000_000, 1, 2, 2**40, 3)),
    }


def _entry_lines() -> dict[str, bytes]:
    empty = Entry(epoch=0, ordinal=0, clock_ms=0, seq=0, mutations={})
    return {
        f"{name} of level {level}": entries.encode(entry, level=level)
        for level in range(1, LEVEL + 1)
        for name, entry in (("empty", empty), ("full", ENTRY))
    }


FAMILIES = {"keys": _key_lines, "records": _record_lines, "entries": _entry_lines}


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_are_what_they_were(family: str) -> None:
    """Data that an earlier version wrote means the same to this one."""
    lines = FAMILIES[family]()
    text = "".join(f"{name}\t{value.hex(' ', -4)}\n" for name, value in lines.items())
    path = HERE / f"{family}.txt"
    if os.environ.get("GOLDEN_REWRITE"):
        path.write_text(text)

    assert text == path.read_text()


def test_records_written_down_read_back() -> None:
    """The golden bytes decode to the original values."""
    golden = _golden("records")

    assert MINIMAL == records.decode_task(golden["minimal task"])
    assert FULL == records.decode_task(golden["full task"])
    assert RESULT == records.decode_result(golden["result"])
    assert ITEMS == {name: records.decode_item(golden[name]) for name in ITEMS}
    for level in range(1, LEVEL + 1):
        assert ENTRY == entries.decode(_golden("entries")[f"full of level {level}"])


def test_every_kind_of_item_is_written_down() -> None:
    """A new kind of item must be added to the golden file."""
    assert set(ItemKind) == {KIND_OF[type(item)] for item in ITEMS.values()}


def _golden(family: str) -> dict[str, bytes]:
    rows = (line.split("\t") for line in (HERE / f"{family}.txt").read_text().splitlines())
    return {name: bytes.fromhex(value) for name, value in rows}
