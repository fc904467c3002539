"""Rendering: the wire's objects, key by key."""

from __future__ import annotations

import json

from msgspec.structs import replace

from codeq_cluster.api.http.answer import encode
from codeq_cluster.api.routes.cluster import raft_view
from codeq_cluster.api.routes.queues import queue_view
from codeq_cluster.api.routes.task_views import result_view, rfc3339, task_view
from codeq_cluster.broker.values import PeerView, QueueDepth, ShardStatus
from codeq_cluster.core.task import Artifact, Attempt, AttemptOutcome, Counters, Result, State, Task

TASK = Task(
    id="t",
    tenant="acme",
    command="Resize",
    priority=3,
    max_attempts=5,
    created_ms=1_000,
    updated_ms=2_345,
    state=State.LEASED,
    attempts=2,
    worker="w",
    lease_until_ms=62_345,
    lease_token=7,
    error="e",
    webhook="https://h",
    trace_parent="p",
    trace_state="s",
    run_at_ms=1_500,
    has_result=True,
    history=(
        Attempt(
            worker="v",
            started_ms=1_000,
            ended_ms=2_000,
            outcome=AttemptOutcome.NACKED,
            error="busy",
        ),
    ),
)


def test_a_task_is_rendered_in_the_contracts_order() -> None:
    """Every key is there, with a lease token for the worker that has just claimed the task."""
    view = encode(task_view(TASK, '{"a": 1}', shards=1, claimed=True)).decode()

    assert (
        '{"id":"t","command":"Resize","payload":"{\\"a\\": 1}","priority":3,'
        '"webhook":"https://h","traceParent":"p","traceState":"s","status":"IN_PROGRESS",'
        '"lastKnownLocation":"INPROG_SET","workerId":"w","leaseUntil":"1970-01-01T00:01:02.345Z",'
        '"attempts":2,"maxAttempts":5,"error":"e","resultKey":"codeq/results/t",'
        '"tenantId":"acme","createdAt":"1970-01-01T00:00:01.000Z",'
        '"updatedAt":"1970-01-01T00:00:02.345Z","leaseToken":7,'
        '"runAt":"1970-01-01T00:00:01.500Z","shard":0,"history":[{"worker":"v",'
        '"startedAt":"1970-01-01T00:00:01.000Z","endedAt":"1970-01-01T00:00:02.000Z",'
        '"outcome":"NACKED","error":"busy"}]}'
    ) == view


def test_empty_fields_are_left_out() -> None:
    """Only six keys, the attempts and the shard are always there."""
    bare = Task(
        id="t",
        tenant="",
        command="c",
        priority=0,
        max_attempts=0,
        created_ms=0,
        updated_ms=0,
        state=State.READY,
    )

    assert [
        "id",
        "command",
        "payload",
        "status",
        "lastKnownLocation",
        "attempts",
        "createdAt",
        "updatedAt",
        "shard",
    ] == list(json.loads(encode(task_view(bare, "1", shards=1))))


def test_nobody_but_the_claiming_worker_sees_a_lease_token() -> None:
    """A reader must not be able to act for the worker."""
    assert b"leaseToken" not in encode(task_view(TASK, "1", shards=1))


def test_a_task_says_what_time_will_do_to_it() -> None:
    """It has the instant at which it will be ready or die, and no instant that has passed."""
    timed = replace(TASK, due_ms=3_000, expires_ms=9_000)
    shown = {
        state: json.loads(encode(task_view(replace(timed, state=state), "1", shards=1)))
        for state in State
    }

    assert "1970-01-01T00:00:03.000Z" == shown[State.DELAYED]["readyAt"]
    assert {State.DELAYED} == {state for state in State if "readyAt" in shown[state]}
    assert "1970-01-01T00:00:09.000Z" == shown[State.READY]["expiresAt"]
    assert {
        State.READY,
        State.DELAYED,
        State.HELD,
    } == {state for state in State if "expiresAt" in shown[state]}


def test_a_result_echoes_the_body_unchanged() -> None:
    """Even an empty object and digits beyond any float are echoed."""
    body = '{"n":12345678901234567890.10}'
    view = encode(
        result_view(
            Result(
                task_id="t",
                status="COMPLETED",
                body=body,
                artifacts=(Artifact("a", "https://u"),),
                completed_ms=1,
            )
        )
    ).decode()

    assert (
        '{"taskId":"t","status":"COMPLETED","result":' + body + ","
        '"artifacts":[{"name":"a","url":"https://u"}],"completedAt":"1970-01-01T00:00:00.001Z"}'
    ) == view


def test_a_failed_result_has_no_body() -> None:
    """The key is absent, not null."""
    view = encode(result_view(Result(task_id="t", status="FAILED", error="e", completed_ms=0)))

    assert {
        "taskId": "t",
        "status": "FAILED",
        "error": "e",
        "completedAt": "1970-01-01T00:00:00.000Z",
    } == json.loads(view)


def test_queue_stats_have_every_key_always() -> None:
    """Clients read the keys without checking for their presence."""
    view = queue_view(QueueDepth("c", Counters(1, 2, 3, 4, held=5), 5_000, 4_500), now_ms=7_999)

    assert {
        "command": "c",
        "ready": 1,
        "delayed": 2,
        "inProgress": 3,
        "dlq": 4,
        "oldestReadySeconds": 2,
        "held": 5,
        "oldestHeldSeconds": 3,
    } == json.loads(encode(view))


def test_raft_status_speaks_of_every_group() -> None:
    """The reference's keys come first."""
    status = ShardStatus(
        shard_idx=0,
        is_leader=True,
        self_id="a",
        self_addr="h:1",
        self_http_addr="http://a",
        log_sync="kernel",
        peers=(PeerView(id="b", http_addr="http://b", connected=True, match_index=4),),
    )
    view = json.loads(encode(raft_view([status])))

    assert 1 == view["numGroups"]
    assert [
        "shardIdx",
        "isLeader",
        "selfId",
        "selfAddr",
        "leaderId",
        "leaderAddr",
        "leaderHTTPAddr",
        "hasLeader",
    ] == list(view["groups"][0])[:8]
    assert "http://a" == view["groups"][0]["selfHTTPAddr"]
    assert "kernel" == view["groups"][0]["logSync"]
    assert [{"id": "b", "httpAddr": "http://b", "connected": True, "matchIndex": 4}] == view[
        "groups"
    ][0]["peers"]


def test_instants_are_utc_with_milliseconds() -> None:
    """The form is that of RFC 3339, with a Z."""
    assert "2024-11-19T07:06:40.007Z" == rfc3339(1_732_000_000_007)
