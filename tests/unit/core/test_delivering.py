"""Messages that leave the broker: callbacks of ended tasks, and unneeded artifacts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.delivering import SWEEP_RETRY_MS
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import Delivery, Sweep
from codeq_cluster.core.operations import (
    Abandon,
    Cancel,
    Delete,
    Delivered,
    Operation,
    Replay,
    Requeue,
    Staging,
    Swept,
    Undelivered,
)
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection, Submitted
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import HISTORY_ERROR_CHARS_MAX, UPLOADS_MAX, State

from .shard import LEASE_MS, NOW_MS, Shard, submit

HOOK = "https://hooks.example/done"
RULES = LifetimeRules(
    delivery_attempts_max=4,
    delivery_age_max_ms=60_000,
    delivery_base_ms=2_000,
    delivery_max_ms=5_000,
    sweep_delay_ms=30,
)
STAGE = Staging(id="t", tenant="acme", worker="ann", upload="u1")
FAILED = Undelivered(tenant="acme", id="t.1", attempt=1, error="503")
REQUEUE = Requeue(request="requeue-1", tenant="acme", ids=("t",), by="ops")
REPLAY = Replay(request="replay-1", tenant="acme", ids=("t.1",), by="ops")


@pytest.mark.parametrize(
    "end",
    [
        submit(),
        submit(status="FAILED", body="", error="broken"),
        Cancel(request="c", id="t", tenant="acme"),
        Abandon(request="a", id="t", tenant="acme", worker="ann"),
        Nack(request="n", id="t", tenant="acme", worker="ann", reason="busy"),
        None,
    ],
)
def test_every_end_is_told_with_its_result(end: Operation | None) -> None:
    """Every end counts, even one by an expired lease; the delivery is due at once."""
    shard = _leased(webhook=HOOK)
    if end is None:
        shard.wait(LEASE_MS)
    else:
        shard.ask(end)
    assert shard.task().state.terminal

    now_ms = shard.view.now_ms
    assert [
        Delivery(
            tenant="acme",
            id="t.1",
            task_id="t",
            command="render",
            url=HOOK,
            created_ms=now_ms,
            due_ms=now_ms,
            trace_parent="00-aa-bb-01",
            trace_state="a=b",
            since_ms=now_ms,
        )
    ] == shard.items(ItemKind.DELIVERY)
    assert shard.view.bodies["acme", "t.1"] == shard.view.result("t")


def test_a_task_that_nobody_claimed_in_time_has_a_callback() -> None:
    """A death by time is an end like any other."""
    shard = Shard()
    shard.create(webhook=HOOK, ttl_ms=5)
    shard.wait(5)

    assert "MESSAGE_EXPIRED" == shard.view.bodies["acme", "t.1"].error


def test_a_task_without_a_webhook_has_no_callback() -> None:
    """Neither its end nor its deletion makes a delivery."""
    shard = _leased()
    shard.ask(submit())
    shard.ask(Delete(request="d", tenant="acme", ids=("t",), by="ops"))

    assert [] == shard.items(ItemKind.DELIVERY)


def test_each_end_of_a_revived_task_is_a_delivery_of_its_own() -> None:
    """The second delivery does not replace the first, and both bodies stay."""
    shard = _dead(webhook=HOOK)
    shard.ask(REQUEUE)
    shard.claim()
    shard.ask(submit())

    assert ["t.1", "t.2"] == [item.id for item in shard.items(ItemKind.DELIVERY)]
    assert "LEASE_EXPIRED" == shard.view.bodies["acme", "t.1"].error
    assert "COMPLETED" == shard.view.bodies["acme", "t.2"].status


def test_a_delivery_outlives_its_task() -> None:
    """The callback of a deleted task is still made."""
    shard = _told()
    shard.ask(Delete(request="d", tenant="acme", ids=("t",), by="ops"))

    assert NOW_MS == shard.delivery().due_ms
    assert "COMPLETED" == shard.view.bodies["acme", "t.1"].status


def test_an_id_used_again_tells_of_its_own_end() -> None:
    """The delivery left by the first task of that id makes room."""
    shard = _told()
    shard.ask(Delete(request="d", tenant="acme", ids=("t",), by="ops"))
    shard.create(webhook=HOOK)
    shard.ask(Cancel(request="c", id="t", tenant="acme"))

    assert "CANCELLED" == shard.view.bodies["acme", "t.1"].error


def test_a_delivery_ends_once() -> None:
    """A second report of its success changes nothing."""
    shard = _told()
    done = Delivered(tenant="acme", id="t.1")

    assert Changed(1) == shard.ask(done)
    assert Changed(0) == shard.ask(done)
    assert {} == shard.view.bodies


def test_waits_double_up_to_a_cap_and_then_the_delivery_is_dead() -> None:
    """A dead delivery is kept with its last error for as long as a dead letter."""
    shard = _told()
    waits_ms = []
    for attempt in range(1, 4):
        assert Changed(1) == shard.ask(replace(FAILED, attempt=attempt))
        waits_ms.append(shard.delivery().due_ms - NOW_MS)
    shard.ask(replace(FAILED, attempt=4, error="x" * 9_999))
    dead = shard.delivery()

    assert [2_000, 4_000, 5_000] == waits_ms
    assert (4, 0, NOW_MS) == (dead.attempts, dead.due_ms, dead.died_ms)
    assert NOW_MS + RULES.dlq_retention_ms == dead.expires_ms
    assert HISTORY_ERROR_CHARS_MAX == len(dead.error)
    assert Changed(0) == shard.ask(Delivered(tenant="acme", id="t.1"))
    assert Changed(0) == shard.ask(replace(FAILED, attempt=5))


def test_a_dead_delivery_is_deleted_at_its_end_with_its_body() -> None:
    """Time acts on it as on a dead letter."""
    shard = _undeliverable()
    shard.ask(Delete(request="d", tenant="acme", ids=("t",), by="ops"))
    assert 0 == shard.wait(RULES.dlq_retention_ms - 1)
    assert 1 == shard.wait(1)

    assert [] == shard.items(ItemKind.DELIVERY)
    assert {} == shard.view.bodies


@pytest.mark.parametrize(("wait_ms", "due_ms"), [(0, 2_000), (1_999, 2_000), (9_000, 9_000)])
def test_a_target_may_ask_for_a_longer_wait(wait_ms: int, due_ms: int) -> None:
    """A target cannot ask for a shorter wait."""
    shard = _told()
    shard.ask(replace(FAILED, wait_ms=wait_ms))

    assert NOW_MS + due_ms == shard.delivery().due_ms


@pytest.mark.parametrize("attempt", [1, 3])
def test_an_attempt_is_counted_once_and_in_order(attempt: int) -> None:
    """A repeated or premature report changes nothing."""
    shard = _told()
    shard.ask(FAILED)
    before = shard.delivery()

    assert Changed(0) == shard.ask(replace(FAILED, attempt=attempt))
    assert before == shard.delivery()


def test_a_delivery_that_was_not_tried_is_put_off_and_not_counted() -> None:
    """An outage behind an open circuit breaker kills nothing; a repeated deferral is no change."""
    shard = _told()
    put_off = replace(FAILED, deferred_ms=700)

    assert shard.ask(put_off) == shard.ask(put_off) == Changed(1)
    assert (0, NOW_MS + 700) == (shard.delivery().attempts, shard.delivery().due_ms)
    assert "" == shard.delivery().error


@pytest.mark.parametrize(
    ("told", "attempts", "error"),
    [
        ((replace(FAILED, deferred_ms=700),), 0, "and not tried"),
        ((FAILED,), 1, "at last: 503"),
        ((FAILED, replace(FAILED, attempt=2, deferred_ms=700)), 1, "at last: 503"),
    ],
)
def test_a_delivery_that_is_pending_for_too_long_is_dead_tried_or_not(
    told: tuple[Undelivered, ...], attempts: int, error: str
) -> None:
    """The delivery dies not a millisecond sooner, is kept like any dead one, and says why."""
    shard = _told()
    for each in told[:-1]:
        shard.ask(each)
    shard.view.now_ms = NOW_MS + RULES.delivery_age_max_ms - 1
    shard.ask(Undelivered(tenant="acme", id="t.1", attempt=told[-1].attempt, deferred_ms=9_000))
    assert not shard.delivery().died_ms
    shard.view.now_ms += 1

    assert Changed(1) == shard.ask(told[-1])
    dead = shard.delivery()
    assert (attempts, 0, shard.view.now_ms) == (dead.attempts, dead.due_ms, dead.died_ms)
    assert shard.view.now_ms + RULES.dlq_retention_ms == dead.expires_ms
    assert f"not accepted within 60 s, {error}" == dead.error
    assert Changed(0) == shard.ask(told[-1])


def test_the_last_attempt_speaks_for_itself_however_late_it_is() -> None:
    """After too many attempts and too long a time, the target's answer is the reason."""
    shard = _told()
    for attempt in range(1, 4):
        shard.ask(replace(FAILED, attempt=attempt))
    shard.view.now_ms += RULES.delivery_age_max_ms
    shard.ask(replace(FAILED, attempt=4))

    assert (shard.view.now_ms, "503") == (shard.delivery().died_ms, shard.delivery().error)


@pytest.mark.parametrize(
    "told", [replace(FAILED, deferred_ms=9_999_999), replace(FAILED, wait_ms=9_999_999)]
)
def test_a_delivery_is_put_off_to_its_end_at_the_latest(told: Undelivered) -> None:
    """Then it is due when it must be given up, even if its target asks for a later retry."""
    shard = _told()
    shard.ask(told)

    assert NOW_MS + RULES.delivery_age_max_ms == shard.delivery().due_ms


def test_a_replayed_delivery_is_as_young_as_a_new_one() -> None:
    """Its former life does not count, and its former error is not reported again."""
    shard = _undeliverable()
    shard.view.now_ms += RULES.delivery_age_max_ms
    shard.ask(REPLAY)
    put_off = replace(FAILED, deferred_ms=1)
    shard.view.now_ms += RULES.delivery_age_max_ms - 2
    shard.ask(put_off)
    assert 0 == shard.delivery().died_ms
    shard.view.now_ms += 2
    shard.ask(put_off)

    assert shard.view.now_ms == shard.delivery().died_ms
    assert "not accepted within 60 s, and not tried" == shard.delivery().error


def test_a_replayed_delivery_starts_over_once() -> None:
    """Retried under its request, the replay revives nothing that died since."""
    shard = _undeliverable()
    shard.view.now_ms += 9

    assert Changed(1) == shard.ask(replace(REPLAY, ids=("t.1", "t.1", "missing")))
    alive = shard.delivery()
    assert (0, 0, 0) == (alive.attempts, alive.died_ms, alive.expires_ms)
    assert (NOW_MS + 9, "replay-1") == (alive.due_ms, alive.replay)
    assert Changed(1) == shard.ask(REPLAY)
    assert Changed(0) == shard.ask(replace(REPLAY, request="replay-2"))
    for attempt in range(1, 5):
        shard.ask(replace(FAILED, attempt=attempt))
    assert Changed(1) == shard.ask(REPLAY)
    assert shard.delivery().died_ms
    assert Changed(1) == shard.ask(replace(REPLAY, request="replay-3"))
    assert not shard.delivery().died_ms
    assert 2 == len(shard.items(ItemKind.AUDIT))


def test_only_the_tenants_own_deliveries_are_acted_on() -> None:
    """For a caller, another tenant's delivery does not exist."""
    shard = _undeliverable()

    assert Changed(0) == shard.ask(replace(REPLAY, tenant="umbrella"))
    assert Changed(0) == shard.ask(Delivered(tenant="umbrella", id="t.1"))


def test_artifacts_are_announced_once_by_the_holder() -> None:
    """A retry gets the same answer; a stranger's announcement is refused."""
    shard = _leased()

    assert shard.ask(STAGE) == shard.ask(STAGE) == Changed(1)
    assert ("u1",) == shard.task().uploads
    assert Rejected(Rejection.NOT_OWNER) == shard.ask(replace(STAGE, worker="bob"))
    assert Rejected(Rejection.LEASE_LOST) == shard.ask(replace(STAGE, token=7))
    assert Rejected(Rejection.NOT_FOUND) == shard.ask(replace(STAGE, tenant="umbrella"))


def test_a_task_has_only_so_many_sets_of_artifacts() -> None:
    """The refusal names the bound; the result is still accepted."""
    shard = _leased()
    for number in range(UPLOADS_MAX):
        shard.ask(replace(STAGE, upload=f"u{number}"))

    assert Rejected(Rejection.TOO_MANY, "uploads") == shard.ask(replace(STAGE, upload="more"))
    assert isinstance(shard.ask(submit(uploads=("u7",))), Submitted)
    assert UPLOADS_MAX - 1 == len(shard.swept())


def test_uploads_outside_the_result_are_swept_at_the_end_and_the_rest_with_the_task() -> None:
    """Each set is swept once, after the delay in which a late upload may still arrive."""
    shard = _leased()
    for upload in ("u1", "u2", "u3"):
        shard.ask(replace(STAGE, upload=upload))
    shard.ask(submit(uploads=("u2",)))

    assert [("t", "u1"), ("t", "u3")] == shard.swept()
    assert {NOW_MS + RULES.sweep_delay_ms} == {
        item.due_ms for item in shard.items(ItemKind.SWEEP) if isinstance(item, Sweep)
    }
    assert ("u2",) == shard.task().uploads
    for upload in ("u1", "u3"):
        assert Changed(1) == shard.ask(Swept(tenant="acme", id=f"t.{upload}", attempt=1))
    assert [] == shard.swept()
    shard.ask(Delete(request="d", tenant="acme", ids=("t",), by="ops"))
    assert [("t", "u2")] == shard.swept()


def test_artifacts_wait_for_the_next_attempt() -> None:
    """A lease that is given back ends nothing."""
    shard = Shard(RULES)
    shard.create()
    shard.claim()
    shard.ask(STAGE)
    shard.ask(Abandon(request="a", id="t", tenant="acme", worker="ann"))

    assert ("u1",) == shard.task().uploads
    assert [] == shard.swept()


def test_a_revived_task_cannot_use_artifacts_staged_before_its_death() -> None:
    """A late result that refers to them is refused, and so is their announcement."""
    shard = _dead()
    assert [("t", "u1")] == shard.swept()
    shard.ask(REQUEUE)
    shard.claim()

    assert Rejected(Rejection.LEASE_LOST) == shard.ask(submit(uploads=("u1",)))
    assert Rejected(Rejection.LEASE_LOST) == shard.ask(STAGE)
    assert shard.task().state is State.LEASED
    assert isinstance(shard.ask(submit()), Submitted)
    assert [("t", "u1")] == shard.swept()


def test_a_sweep_is_tried_until_it_is_done() -> None:
    """Each attempt comes later than the last, and is reported once."""
    shard = _dead()
    failed = Swept(tenant="acme", id="t.u1", attempt=1, failed=True)
    died_ms = shard.view.now_ms

    assert Changed(1) == shard.ask(failed)
    assert Changed(0) == shard.ask(failed)
    assert [
        Sweep(
            tenant="acme",
            id="t.u1",
            task_id="t",
            upload="u1",
            due_ms=died_ms + SWEEP_RETRY_MS,
            attempts=1,
        )
    ] == shard.items(ItemKind.SWEEP)
    assert Changed(1) == shard.ask(replace(failed, attempt=2, failed=False))
    assert Changed(0) == shard.ask(replace(failed, attempt=3))


def _leased(**fields: object) -> Shard:
    """Return a shard where `ann` holds task `t` on its last attempt."""
    shard = Shard(RULES)
    shard.create(max_attempts=1, trace_parent="00-aa-bb-01", trace_state="a=b", **fields)
    shard.claim()
    return shard


def _dead(**fields: object) -> Shard:
    """Return a shard whose task `t` died with the staged artifacts `u1`."""
    shard = _leased(**fields)
    shard.ask(STAGE)
    shard.wait(LEASE_MS)
    return shard


def _told() -> Shard:
    """Return a shard with an untried delivery."""
    shard = _leased(webhook=HOOK)
    shard.ask(submit())
    return shard


def _undeliverable() -> Shard:
    """Return a shard with a dead delivery."""
    shard = _told()
    for attempt in range(1, 5):
        shard.ask(replace(FAILED, attempt=attempt))
    return shard
