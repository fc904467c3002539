"""Triage: purges, requeues with another payload, and requeues that are taken back."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.durable import Park
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import Audit
from codeq_cluster.core.operations import Cancel, Purge, Requeue, Revise, UndoRequeue
from codeq_cluster.core.outcomes import Changed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import AttemptOutcome, State

from .shard import NOW_MS, Shard

PURGE = Purge(request="purge-1", tenant="acme", queue="render", ids=("t",), by="ops")
REQUEUE = Requeue(request="all.1", tenant="acme", ids=("t",), by="ops")
UNDO_REQUEUE = UndoRequeue(request="back-1", tenant="acme", ids=("t",), by="ops", requeue="all")
REVISE = Revise(request="revise-1", tenant="acme", id="t", by="ops", payload='{"n":12}', endings=1)


def dead(**fields: object) -> Shard:
    """Return a shard with a task that died of its second attempt."""
    shard = Shard(LifetimeRules(backoff_base_ms=0))
    shard.create(max_attempts=2, **fields)
    for _ in range(2):
        shard.wait(1000)
        [task_id] = shard.claim()
        task = shard.task(task_id)
        shard.ask(
            Nack(
                request=f"nack-{task.attempts}",
                id=task_id,
                tenant="acme",
                worker="ann",
                delay_ms=1,
                reason="no luck",
                token=task.lease_token,
            )
        )
    assert shard.task().state is State.DEAD
    return shard


def test_a_purge_cancels_what_waits_and_nothing_else() -> None:
    """Ready and delayed tasks of the queue end as failed; leased ones continue."""
    shard = Shard()
    shard.create("running")
    [_] = shard.claim()
    for task_id, fields in (("ready", {}), ("delayed", {"delay_ms": 5000}), ("t", {})):
        shard.create(task_id, **fields)
    shard.create("other", command="scan")
    ids = ("running", "ready", "delayed", "other", "t", "nobody")

    assert Changed(3) == shard.ask(replace(PURGE, ids=ids))
    assert [
        State.LEASED,
        State.FAILED,
        State.FAILED,
        State.READY,
        State.FAILED,
    ] == [shard.task(each).state for each in ids[:5]]
    assert "CANCELLED" == shard.task().error
    assert [("queue.purge", "render", "3 tasks on one shard")] == recorded(shard)


def test_a_purge_sent_again_is_answered_as_before() -> None:
    """Only tasks that this request ended count; another tenant's are not touched."""
    shard = Shard()
    shard.create()
    shard.create("gone")
    shard.ask(Cancel(request="cancel-1", id="gone", tenant="acme"))
    asked = replace(PURGE, ids=("t", "gone"))

    assert Changed(0) == shard.ask(replace(asked, tenant="other"))
    assert [Changed(1), Changed(1)] == [shard.ask(asked), shard.ask(asked)]
    assert 1 == len(recorded(shard))


def test_purged_tasks_tell_their_webhooks() -> None:
    """A purge is an end like any other."""
    shard = Shard()
    shard.create(webhook="http://sink.example/")
    shard.ask(PURGE)

    assert "t" == shard.delivery().task_id


def test_a_dead_letter_gets_another_payload_with_its_new_life() -> None:
    """The size is counted, the attempts restart at 0, and the history names the operator."""
    shard = dead(idempotency_key="k", fingerprint="f")
    assert Changed(1) == shard.ask(REVISE)
    task = shard.task()

    assert (State.READY, 0, 8) == (task.state, task.attempts, task.payload_bytes)
    assert '{"n":12}' == shard.view.payload("t")
    assert task.history[-1].outcome is AttemptOutcome.REQUEUED
    assert [("dlq.revise", "t", "")] == recorded(shard)


def test_a_create_sent_again_still_finds_a_revised_task() -> None:
    """The idempotency key stands for the producer's payload, not for the revised one."""
    shard = dead(idempotency_key="k", fingerprint="f")
    before = shard.view.keyed("acme", "k")
    shard.ask(REVISE)

    assert before == shard.view.keyed("acme", "k")


def test_only_the_dead_letter_that_was_seen_is_revised() -> None:
    """A task that was revived and died since keeps its payload, and so does another tenant's."""
    shard = dead()
    refused = [
        shard.ask(replace(REVISE, endings=0)),
        shard.ask(replace(REVISE, tenant="other")),
        shard.ask(replace(REVISE, id="nobody")),
    ]
    done = [shard.ask(REVISE), shard.ask(REVISE), shard.ask(replace(REVISE, request="revise-2"))]

    assert [Changed(0)] * 3 == refused
    assert [Changed(1), Changed(1), Changed(0)] == done


def test_a_requeue_taken_back_restores_everything() -> None:
    """Death, place and attempts are the same; only the audit record shows the undo."""
    shard = dead(webhook="http://sink.example/")
    before, told = shard.task(), shard.items(ItemKind.DELIVERY)
    shard.view.now_ms += 5000
    shard.ask(REQUEUE)
    shard.view.now_ms += 5000
    assert Changed(1) == shard.ask(UNDO_REQUEUE)
    after = shard.task()

    assert before == replace(after, ended_by=before.ended_by, ready_ms=before.ready_ms)
    assert shard.view.result("t") is not None
    assert told == shard.items(ItemKind.DELIVERY)
    assert [("dlq.undo", "t", ""), ("dlq.requeue", "t", "")] == recorded(shard)
    assert [
        Changed(1),
        Changed(0),
    ] == [shard.ask(UNDO_REQUEUE), shard.ask(replace(UNDO_REQUEUE, request="back-2"))]


def test_a_task_claimed_since_is_not_taken_back() -> None:
    """Tasks of another requeue or another tenant are left alone too."""
    shard = dead()
    shard.ask(REQUEUE)
    refused = [
        shard.ask(replace(UNDO_REQUEUE, requeue="al")),
        shard.ask(replace(UNDO_REQUEUE, requeue="all.1")),
        shard.ask(replace(UNDO_REQUEUE, tenant="other")),
        shard.ask(replace(UNDO_REQUEUE, ids=("nobody",))),
    ]
    shard.claim()

    assert [Changed(0)] * 4 == refused
    assert Changed(0) == shard.ask(UNDO_REQUEUE)
    assert shard.task().state is State.LEASED


def test_a_task_parked_since_is_not_taken_back() -> None:
    """A sleep ends without an attempt."""
    shard = dead()
    shard.ask(REQUEUE)
    shard.wait(1)
    [task_id] = shard.claim()
    shard.ask(
        Park(
            id=task_id,
            tenant="acme",
            worker="ann",
            step="sleep",
            wait_ms=1000,
            extend_ms=60_000,
            token=shard.task().lease_token,
        )
    )
    shard.wait(1001)
    assert State.READY is shard.task().state

    assert Changed(0) == shard.ask(UNDO_REQUEUE)
    assert State.READY is shard.task().state


def test_a_second_life_is_counted_by_itself() -> None:
    """A dead letter whose requeue was undone has the attempts of its latest life."""
    shard = dead()
    shard.ask(replace(REQUEUE, request="first.1"))
    for number in range(2):
        shard.wait(1000)
        shard.claim()
        token = shard.task().lease_token
        shard.ask(
            Nack(
                request=f"again-{number}",
                id="t",
                tenant="acme",
                worker="ann",
                delay_ms=1,
                reason="",
                token=token,
            )
        )
    died = shard.task()
    shard.ask(REQUEUE)
    shard.ask(UNDO_REQUEUE)

    assert (State.DEAD, 2) == (died.state, died.attempts)
    assert 2 == shard.task().attempts
    assert 5 == len(shard.task().history)


def recorded(shard: Shard) -> list[tuple[str, str, str]]:
    """Return action, target and detail of the audit records, the newest first."""
    return [
        (item.action, item.target, item.detail)
        for item in shard.items(ItemKind.AUDIT)
        if isinstance(item, Audit)
    ]


def test_audit_records_name_the_operator() -> None:
    """The name is the subject of the token."""
    shard = dead()
    shard.ask(REQUEUE)
    shard.ask(replace(UNDO_REQUEUE, by="boss"))
    actors = [item.actor for item in shard.items(ItemKind.AUDIT) if isinstance(item, Audit)]

    assert ["boss", "ops"] == sorted(actors)
    assert shard.view.now_ms >= NOW_MS
