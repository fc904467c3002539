"""Operators' actions on topics, queues and ended tasks; each has one audit record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from codeq_cluster.core.decide import decide
from codeq_cluster.core.items import TOPICS_MAX, Audit, Pause, Topic, WebhookKey
from codeq_cluster.core.operations import (
    Cancel,
    Delete,
    DeleteTopic,
    Operation,
    PauseQueue,
    PutTopic,
    Record,
    Requeue,
    ResumeQueue,
    RotateWebhookKey,
)
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection, TopicStands
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import AttemptOutcome, State

from .shard import NOW_MS, Shard, submit

PUT = PutTopic(request="put-1", tenant="acme", name="Render", by="ops", max_attempts=3)
PAUSE = PauseQueue(request="pause-1", tenant="acme", queue="Render", by="ops")
REQUEUE = Requeue(request="requeue-1", tenant="acme", ids=("t",), by="ops")
DELETE = Delete(request="delete-1", tenant="acme", ids=("t",), by="ops")


def test_a_topic_is_made_once_and_changed_under_the_next_version() -> None:
    """Equal values change nothing, from the same request or another."""
    shard = Shard()
    made = shard.ask(PUT)
    shard.view.now_ms += 1
    again = shard.ask(PUT)
    same = shard.ask(replace(PUT, request="put-2"))
    changed = shard.ask(replace(PUT, request="put-3", name="RENDER", weight=7))

    topic = shard.view.item(ItemKind.TOPIC, "acme", "render")
    assert isinstance(topic, Topic)
    assert (2, "RENDER", 7) == (topic.version, topic.name, topic.weight)
    assert (NOW_MS, NOW_MS + 1) == (topic.created_ms, topic.updated_ms)
    assert TopicStands(topic, made=False) == changed
    assert isinstance(made, TopicStands)
    assert made.made
    assert made == again
    assert TopicStands(made.topic, made=False) == same
    assert [
        ("topic.put", "render", "version 2"),
        ("topic.put", "render", "version 1"),
    ] == _recorded(shard)


@pytest.mark.parametrize("field", ["max_attempts", "retention_s", "max_consumers", "weight"])
def test_a_topic_out_of_bounds_is_a_bug(field: str) -> None:
    """The caller checks the bounds; a weight of zero would stop every claim."""
    with pytest.raises(AssertionError):
        decide(Shard().view, replace(PUT, **{field: -1}), LifetimeRules())
    with pytest.raises(AssertionError):
        decide(Shard().view, replace(PUT, weight=101), LifetimeRules())


def test_a_deleted_topic_leaves_the_queue_to_the_broker() -> None:
    """A second deletion finds nothing and leaves no record."""
    shard = Shard()
    shard.ask(PUT)
    delete = DeleteTopic(request="delete-1", tenant="acme", name="RENDER", by="ops")

    assert Changed(1) == shard.ask(delete)
    assert Changed(0) == shard.ask(delete)
    assert [] == shard.items(ItemKind.TOPIC)
    assert 2 == len(_recorded(shard))


def test_a_pause_is_its_first_operators() -> None:
    """A retry gets the same answer, and a second operator's pause changes nothing."""
    shard = Shard()

    assert Changed(1) == shard.ask(PAUSE)
    assert Changed(1) == shard.ask(PAUSE)
    assert Changed(0) == shard.ask(replace(PAUSE, request="pause-2", by="other"))
    assert [
        Pause(tenant="acme", id="render", by="ops", since_ms=NOW_MS, request="pause-1")
    ] == shard.items(ItemKind.PAUSE)
    assert shard.view.policy("acme", "render").paused
    assert not shard.view.policy("umbrella", "render").paused


def test_a_queue_is_resumed_once() -> None:
    """Resuming a queue that is not paused does nothing."""
    shard = Shard()
    shard.ask(PAUSE)
    resume = ResumeQueue(request="resume-1", tenant="acme", queue="render", by="ops")

    assert Changed(1) == shard.ask(resume)
    assert Changed(0) == shard.ask(resume)
    assert not shard.view.policy("acme", "render").paused
    assert ["queue.pause", "queue.resume"] == [action for action, _, _ in _recorded(shard)]


def test_a_webhook_key_is_rotated_once_for_each_request() -> None:
    """The previous version signs until the overlap ends; the first rotation makes the second."""
    shard = Shard()
    rotate = RotateWebhookKey(request="r-1", tenant="acme", overlap_ms=60_000, by="ops")
    answers = [shard.ask(rotate), shard.ask(rotate)]
    shard.view.now_ms += 5
    answers.append(shard.ask(replace(rotate, request="r-2", overlap_ms=0)))

    [key] = shard.items(ItemKind.WEBHOOK_KEY)
    assert [Changed(1)] * 3 == answers
    assert (
        WebhookKey(
            tenant="acme",
            version=3,
            previous_until_ms=NOW_MS + 5,
            rotated_ms=NOW_MS + 5,
            request="r-2",
        )
        == key
    )
    assert [
        ("webhook-key.rotate", "callbacks", "the previous key signs for 0 s more"),
        ("webhook-key.rotate", "callbacks", "the previous key signs for 60 s more"),
    ] == _recorded(shard)


def test_a_revived_dead_letter_has_its_attempts_and_no_time_to_live() -> None:
    """Its history keeps the cause of death and the operator; its result is gone."""
    shard = _dead()
    died = shard.task()
    shard.view.now_ms += 7

    assert Changed(1) == shard.ask(REQUEUE)
    task = shard.task()
    assert (State.READY, 0, 0, 2) == (task.state, task.attempts, task.expires_ms, task.seq)
    assert ("", "", "", False) == (task.error, task.ended_by, task.dead_queue, task.has_result)
    assert task.result_bytes == task.retain_until_ms == 0
    assert shard.view.result("t") is None
    assert (1, 1, 1) == (died.lease_token, task.lease_token, task.endings)
    revival = task.history[-1]
    assert (
        AttemptOutcome.REQUEUED,
        "ops",
        "LEASE_EXPIRED",
    ) == (revival.outcome, revival.worker, revival.error)
    assert (died.updated_ms, NOW_MS + 17) == (revival.started_ms, revival.ended_ms)


def test_a_requeue_sent_again_revives_nothing_that_died_since() -> None:
    """The retry gets the same answer; another operator may decide about the second death."""
    shard = _dead()
    shard.ask(REQUEUE)
    assert Changed(1) == shard.ask(REQUEUE)
    shard.claim(lease_ms=1)
    shard.wait(1)
    assert shard.task().state is State.DEAD

    assert Changed(1) == shard.ask(REQUEUE)
    assert shard.task().state is State.DEAD
    assert Changed(1) == shard.ask(replace(REQUEUE, request="requeue-2"))
    assert shard.task().state is State.READY


@pytest.mark.parametrize("ids", [("missing",), ("alive",), ("foreign",), ()])
def test_only_the_tenants_own_dead_letters_are_revived(ids: tuple[str, ...]) -> None:
    """Nothing changes, and no record is left."""
    shard = _dead()
    shard.create("alive")
    shard.create("foreign", tenant="umbrella", ttl_ms=1)
    shard.wait(1)
    assert shard.task("foreign").state is State.DEAD

    assert Changed(0) == shard.ask(replace(REQUEUE, ids=ids))
    assert [] == _recorded(shard)


def test_a_revived_task_comes_back_to_its_own_queue() -> None:
    """The queue that keeps a dead letter is not the queue it works for."""
    shard = Shard()
    shard.ask(replace(PUT, dead_letter="Graves"))
    shard.create(ttl_ms=5)
    shard.wait(5)
    assert "graves" == shard.task().dead_queue
    shard.ask(REQUEUE)

    assert ["t"] == shard.claim()


def test_an_id_named_twice_is_one_task() -> None:
    """It is counted and changed once, and the record names it as asked."""
    shard = _dead()

    assert Changed(1) == shard.ask(replace(REQUEUE, ids=("t", "t")))
    assert [("dlq.requeue", "t", "2 on one shard")] == _recorded(shard)


@pytest.mark.parametrize(
    ("end", "dead_only", "gone"),
    [
        ("dead", True, True),
        ("dead", False, True),
        ("done", True, False),
        ("done", False, True),
        ("cancelled", False, True),
        ("ready", False, False),
        ("leased", False, False),
    ],
)
def test_only_ended_tasks_are_deleted(end: str, dead_only: bool, gone: bool) -> None:
    """Live tasks are never deleted, and results only when not just dead letters are meant."""
    shard = _ENDS[end]()
    outcome = shard.ask(replace(DELETE, dead_only=dead_only))

    assert Changed(1 if gone else 0) == outcome
    assert gone == (shard.view.task("t") is None)
    action = "dlq.delete" if dead_only else "task.delete"
    assert ([(action, "t", "")] if gone else []) == _recorded(shard)


def test_a_repeated_delete_counts_the_same_tasks() -> None:
    """The retry gets the same answer, and another tenant's task stays."""
    shard = _dead()
    shard.create("foreign", tenant="umbrella", ttl_ms=1)
    shard.wait(1)
    delete = replace(DELETE, ids=("t", "foreign"))

    assert Changed(1) == shard.ask(delete)
    assert Changed(1) == shard.ask(delete)
    assert shard.view.task("foreign") is not None
    assert 1 == len(_recorded(shard))


def test_a_deleted_task_frees_its_key() -> None:
    """Everything that belongs to the task goes with it."""
    shard = Shard()
    shard.create(idempotency_key="k", fingerprint="f")
    shard.ask(Cancel(request="c", id="t", tenant="acme"))
    shard.ask(DELETE)

    assert shard.view.keyed("acme", "k") is None
    assert shard.view.result("t") is None


def test_a_record_says_who_did_what_when_and_ends_after_its_time() -> None:
    """The newest record sorts first; one request has one record per millisecond."""
    shard = Shard(LifetimeRules(audit_retention_ms=100))
    record = Record(
        request="r1", tenant="acme", by="ops", action="cluster.transfer", target="n2", detail="0"
    )
    assert shard.ask(record) == shard.ask(record) == Changed(1)
    shard.view.now_ms += 1
    shard.ask(replace(record, request="r2", action="backup"))

    newest, oldest = shard.items(ItemKind.AUDIT)
    assert isinstance(newest, Audit)
    assert "backup" == newest.action
    assert (
        Audit(
            tenant="acme",
            id="999999999000000-r1",
            at_ms=NOW_MS,
            actor="ops",
            action="cluster.transfer",
            target="n2",
            detail="0",
            request="r1",
            expires_ms=NOW_MS + 100,
        )
        == oldest
    )
    assert 1 == shard.wait(99)
    assert [newest] == shard.items(ItemKind.AUDIT)


def test_the_last_record_of_a_request_in_one_millisecond_is_kept() -> None:
    """The last record includes what the request did before."""
    shard = _dead()
    shard.create("u", ttl_ms=1)
    shard.wait(1)
    for ids in (("t",), ("u", "t")):
        shard.ask(replace(REQUEUE, ids=ids))

    assert [("dlq.requeue", "u", "2 on one shard")] == _recorded(shard)


def _dead() -> Shard:
    """Return a shard whose task `t` died by its lease's end, 10 ms after its creation."""
    shard = Shard()
    shard.create(max_attempts=1, ttl_ms=50)
    shard.claim(lease_ms=10)
    shard.wait(10)
    assert shard.task().state is State.DEAD
    return shard


def _after(*operations: Operation, leased: bool = False) -> Callable[[], Shard]:
    def make() -> Shard:
        shard = Shard()
        shard.create()
        if leased:
            shard.claim()
        for operation in operations:
            shard.ask(operation)
        return shard

    return make


_ENDS = {
    "dead": _dead,
    "done": _after(submit(), leased=True),
    "cancelled": _after(Cancel(request="c", id="t", tenant="acme")),
    "ready": _after(),
    "leased": _after(leased=True),
}


def _recorded(shard: Shard) -> list[tuple[str, str, str]]:
    """Return action, target and detail of the records, the newest first."""
    audits = [item for item in shard.items(ItemKind.AUDIT) if isinstance(item, Audit)]
    assert {audit.actor for audit in audits} <= {"ops"}
    return [(audit.action, audit.target, audit.detail) for audit in audits]


def test_a_tenant_has_so_many_topics_and_pauses_and_no_more() -> None:
    """Existing ones can still be changed, and other tenants are not affected."""
    shard = Shard()
    for n in range(TOPICS_MAX):
        shard.ask(replace(PUT, request=f"t-{n}", name=f"t-{n}"))
        shard.ask(replace(PAUSE, request=f"q-{n}", queue=f"q-{n}"))

    assert Rejected(Rejection.TOO_MANY, "topics") == shard.ask(replace(PUT, name="more"))
    assert Rejected(Rejection.TOO_MANY, "paused queues") == shard.ask(replace(PAUSE, queue="more"))
    assert isinstance(shard.ask(replace(PUT, name="t-0", max_attempts=9)), TopicStands)
    assert isinstance(shard.ask(replace(PUT, name="more", tenant="umbrella")), TopicStands)
