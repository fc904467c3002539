"""Planted violations: for every guarantee, histories that break it and their repaired twins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from jepsen_lite.checker.judging import PROMISES, verdicts
from jepsen_lite.history import AND_CLIENTS, HELD, LOST, MEMBERS, F, Follow, Group, Type
from jepsen_lite.story import Story

Plot = Callable[[Story, bool], None]

PLOTS: list[tuple[str, str, Plot]] = []


def planted(guarantee: str) -> Callable[[Plot], Plot]:
    """Register a story that breaks `guarantee` if it is called with `broken`."""

    def register(plot: Plot) -> Plot:
        PLOTS.append((guarantee, plot.__name__, plot))
        return plot

    return register


@planted("G1")
def a_task_is_gone(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.read("a", (9, 10), "" if broken else "PENDING", final=True)


@planted("G2")
def a_payload_is_altered(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), content="{}")
    story.claim("a", (2, 3), content="{ }" if broken else "{}")


@planted("G2")
def two_payloads_are_exchanged(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), content="1")
    story.create("b", (0, 1), content="2")
    story.read("b", (2, 3), "PENDING", payload="1" if broken else "2")


@planted("G2")
def a_task_comes_from_nowhere(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), Type.INFO)
    story.claim("ghost" if broken else "a", (2, 3))


@planted("G2")
def a_create_is_carried_out_twice(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), content="1")
    story.claim("a", (2, 2.1), lease_s=1, content="1")
    story.claim("b" if broken else "a", (4, 5), token=2, attempt=2, content="1")


@planted("G3")
def a_refused_create_is_delivered(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), Type.FAIL if broken else Type.INFO)
    story.claim("a", (2, 3))


@planted("G3")
def a_refused_result_is_stored(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3))
    story.result("a", (4, 5), content="r", kind=Type.FAIL if broken else Type.INFO)
    story.read("a", (6, 7), "COMPLETED", content="r")


@planted("G3")
def a_refused_cancel_is_carried_out(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.cancel("a", (2, 3), Type.FAIL if broken else Type.INFO)
    story.read("a", (6, 7), "FAILED", error="CANCELLED")


@planted("G3")
def a_claim_that_found_nothing_took_a_task(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("", (2, 3), kind=Type.OK if broken else Type.INFO)
    story.claim("a", (60, 61), token=2, attempt=2)


@planted("G3")
def a_claim_that_took_longer_than_its_lease_left_one_behind(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("", (2, 5 if broken else 13), lease_s=10)
    story.claim("a", (60, 61), token=2, attempt=2)


@planted("G3")
def a_refused_claim_took_a_task_and_lost_it_before_it_asked_again(
    story: Story, broken: bool
) -> None:
    story.create("a", (0, 1))
    story.claim("", (2, 5 if broken else 13), lease_s=10, kind=Type.FAIL)
    story.claim("a", (60, 61), token=2, attempt=2)


@planted("G3")
def a_claim_lost_its_task_to_a_cancel(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.create("b", (0, 1))
    story.claim("b", (2, 6))
    story.cancel("a", (7, 8) if broken else (4, 5))
    story.read("a", (9, 10), "FAILED", attempt=1, error="CANCELLED")


@planted("G4")
def a_key_makes_two_tasks(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), key="k", content="{}")
    story.create("b" if broken else "a", (2, 3), key="k", content="{}")


@planted("G4")
def a_lost_create_made_a_second_task(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), Type.INFO, key="k", content="{}")
    story.create("a", (2, 3), key="k", content="{}")
    story.claim("a", (4, 5), content="{}")
    story.claim("b" if broken else "a", (30, 31), token=2, attempt=2, content="{}")


@planted("G4")
def a_key_is_accepted_with_two_contents(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), key="k", content="1")
    story.create("a", (2, 3), Type.OK if broken else Type.FAIL, key="k", content="2")


@planted("G4")
def a_repeated_create_is_called_a_conflict(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), key="k", content="1")
    kind = Type.FAIL if broken else Type.OK
    code = "idempotency-conflict" if broken else ""
    story.create("a", (2, 3), kind, key="k", content="1", code=code)


@planted("G5")
def a_token_falls(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), token=7)
    story.claim("a", (20, 21), token=6 if broken else 8, attempt=2)


@planted("G5")
def a_token_is_given_twice(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 30), token=7)
    story.claim("a", (2, 30), token=7 if broken else 8, attempt=2)


@planted("G6")
def a_lease_ends_early(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), lease_s=10)
    story.claim("a", (11, 11.9 if broken else 12.1), token=2, attempt=2)


@planted("G6")
def a_heartbeat_is_forgotten(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), lease_s=10)
    story.beat("a", (8, 9), lease_s=10, kind=Type.OK if broken else Type.INFO)
    story.claim("a", (14, 15), token=2, attempt=2)


@planted("G7")
def two_results_are_accepted(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), token=1)
    story.result("a", (4, 5), content="1")
    story.result("a", (4, 5), content="2", kind=Type.OK if broken else Type.FAIL)


@planted("G7")
def a_late_worker_finishes(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), token=1)
    story.claim("a", (20, 21), token=2, attempt=2)
    story.result("a", (22, 23), token=1, kind=Type.OK if broken else Type.FAIL)


@planted("G7")
def a_late_heartbeat_is_accepted(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), token=1)
    story.claim("a", (20, 21), token=2, attempt=2)
    story.beat("a", (22, 23), token=1, kind=Type.OK if broken else Type.FAIL)


@planted("G7")
def a_result_comes_from_nowhere(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3))
    story.result("a", (4, 5), content="1", kind=Type.INFO)
    story.read("a", (6, 7), "COMPLETED", content="2" if broken else "1", final=True)


@planted("G7")
def a_worker_goes_on_with_what_it_gave_back(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3))
    story.give_back("a", (4, 5))
    story.result("a", (6, 7), kind=Type.OK if broken else Type.FAIL)


@planted("G8")
def a_finished_task_is_delivered(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), token=1)
    story.result("a", (4, 5))
    story.claim("a" if broken else "", (20, 21), token=2, attempt=2)


@planted("G8")
def a_cancelled_task_is_delivered(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.cancel("a", (2, 3))
    story.claim("a", (4 if broken else 2, 5))


@planted("G8")
def a_result_changes(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3))
    story.result("a", (4, 5), content="1")
    story.read("a", (6, 7), "COMPLETED", content="1")
    story.read("a", (8, 9), "COMPLETED", content="2" if broken else "1")


@planted("G9")
def an_abandoned_task_is_not_found(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3))
    story.give_back("a", (4, 5))
    story.claim("", (11 if broken else 9, 12))


@planted("G9")
def an_expired_task_is_not_found(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), lease_s=10)
    story.claim("", (19 if broken else 14, 20))
    story.claim("a", (21, 22), token=2, attempt=2)


@planted("G9")
def a_new_task_is_not_found(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("", (4, 5))
    story.claim("a", (6 if broken else 4.5, 7))


@planted("G9")
def a_task_is_not_found_that_a_lost_claim_may_have(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), attempts_max=1)
    story.claim("", (2, 3), kind=Type.INFO)
    story.claim("", (60, 61))
    if broken:
        story.read("a", (70, 71), "PENDING")
    else:
        story.read("a", (70, 71), "FAILED", location="DLQ_SET", attempt=1)
    story.create("b", (40, 41))
    story.claim("b", (42, 43))
    story.result("b", (44, 45))


@planted("G9")
def a_task_is_left_over(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("", (1.5, 2))
    story.phase("drained", 3)
    location = "PENDING_LIST" if broken else "DELAYED_ZSET"
    story.read("a", (4, 5), "PENDING", location=location, final=True)


@planted("G10")
def one_delivery_too_many(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), attempts_max=1 if broken else 2)
    story.claim("a", (2, 3), token=1, attempt=1)
    story.claim("a", (20, 21), token=2, attempt=2)


@planted("G10")
def deliveries_are_counted_from_zero(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), token=1, attempt=1)
    story.claim("a", (20, 21), token=2, attempt=1 if broken else 2)


@planted("G10")
def a_task_dies_with_attempts_left(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), attempts_max=2)
    story.claim("a", (2, 3), token=1, attempt=1)
    story.give_back("a", (4, 5), dead=broken)


@planted("G10")
def a_task_outlives_its_last_attempt(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), attempts_max=1)
    story.claim("a", (2, 3), token=1, attempt=1)
    story.give_back("a", (4, 5), dead=not broken)


@planted("G10")
def a_dead_letter_has_a_result(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), attempts_max=1)
    story.claim("a", (2, 3))
    story.result("a", (4, 5), kind=Type.OK if broken else Type.FAIL)
    story.read("a", (60, 61), "FAILED", location="DLQ_SET", attempt=1, final=True)


@planted("G10")
def a_dead_letter_is_lost(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), attempts_max=1)
    story.claim("a", (2, 3))
    story.give_back("a", (4, 5), dead=True)
    location = "NONE" if broken else "DLQ_SET"
    story.read("a", (6, 7), "FAILED", location=location, attempt=1, final=True)


@planted("G10")
def a_dead_letter_is_gone_when_it_is_to_live_again(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), attempts_max=1)
    story.claim("a", (2, 3))
    story.give_back("a", (4, 5), dead=True)
    story.requeue("a", (6, 7))
    story.read("a", (8, 9), "" if broken else "PENDING", final=True)


@planted("G11")
def a_task_comes_before_it_is_due(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), delay_s=10)
    story.claim("a", (8, 9.9 if broken else 10.1))


@planted("G11")
def a_nack_is_not_waited_for(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), token=1)
    story.give_back("a", (4, 5), nack_s=10)
    story.claim("a", (8, 13.9 if broken else 14.1), token=2, attempt=2)


@planted("G11")
def a_revived_task_waits_for_its_last_nack(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), attempts_max=1)
    story.claim("a", (2, 3), token=1)
    story.give_back("a", (4, 5), nack_s=10, dead=not broken)
    story.requeue("a", (6, 7))
    story.claim("a", (8, 9), token=2)
    story.create("b", (0, 1), delay_s=10)
    story.claim("b", (11, 12))


@planted("G11")
def a_task_is_not_found_when_it_is_due(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), delay_s=10)
    story.claim("", (14 if broken else 12.5, 15))


@planted("G12")
def a_task_overtakes(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.create("b", (2, 3))
    story.claim("b", (4, 5))
    story.claim("a", (6 if broken else 4.5, 7))


@planted("G12")
def a_task_overtakes_one_that_nobody_held(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.create("b", (2, 3))
    story.claim("b", (4, 5))
    story.claim("a", (6, 7), token=1 if broken else 2)


@planted("G13")
def a_low_priority_goes_first(story: Story, broken: bool) -> None:
    story.create("low", (0, 1), priority=1)
    story.create("high", (0, 1), priority=9)
    story.claim("low", (2, 3))
    story.claim("high", (4 if broken else 2.5, 5))


@planted("G13")
def a_low_priority_goes_before_one_that_nobody_held(story: Story, broken: bool) -> None:
    story.create("low", (0, 1), priority=1)
    story.create("high", (0, 1), priority=9)
    story.create("other", (0, 1), priority=9)
    story.claim("other", (1, 2))
    story.claim("low", (2, 3))
    story.claim("high", (4, 5), token=1 if broken else 2)


@planted("G14")
def a_lease_that_is_kept_up_is_lost(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), lease_s=10)
    story.beat("a", (8, 9), lease_s=10)
    when = (16, 17) if broken else (18, 19)
    story.beat("a", when, lease_s=10, kind=Type.FAIL, code="lease-lost")


@planted("G15")
def a_read_misses_a_create(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.read("a", (2 if broken else 0.5, 3), "")


@planted("G15")
def a_read_shows_what_was_before(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3))
    story.result("a", (4, 5))
    story.read("a", (6 if broken else 4, 7), "IN_PROGRESS")


@planted("G15")
def two_reads_go_back_in_time(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3))
    story.result("a", (4, 20), content="1")
    first, second = ((5, 6), (7, 8)) if broken else ((7, 8), (5, 6))
    story.read("a", first, "COMPLETED", content="1")
    story.read("a", second, "IN_PROGRESS")


@planted("G16")
def the_power_cut_costs_a_task(story: Story, broken: bool) -> None:
    story.phase("setup", 0, ("n1", "n2", "n3"))
    story.create("a", (0, 1), key="k")
    story.create("a", (1, 1.5), key="k")
    story.claim("a", (2, 3))
    story.result("a", (4, 5), content="1")
    story.fault("power", (6, 7), ("n1", "n2", "n3"), applied=3)
    story.read("a", (9, 10), "" if broken else "COMPLETED", content="1", final=True)


@planted("G17")
def two_replicas_differ(story: Story, broken: bool) -> None:
    story.status("n1", 1, Group(shard=0, applied=7, digest="x"))
    story.status("n2", 2, Group(shard=0, applied=7, digest="y" if broken else "x"))
    story.phase("converged", 3)
    story.phase("final", 3)


@planted("G17")
def equal_digests_hide_different_rows(story: Story, broken: bool) -> None:
    story.status("n1", 1, Group(shard=0, applied=7, digest="x"))
    story.status("n2", 1, Group(shard=0, applied=7, digest="x"))
    story.phase("converged", 3)
    story.phase("final", 3)
    story.status("n1", 4, Group(shard=0, applied=7, digest="r"), p="autopsy")
    story.status("n2", 4, Group(shard=0, applied=7, digest="s" if broken else "r"), p="autopsy")


@planted("G17")
def two_lead_in_one_term(story: Story, broken: bool) -> None:
    story.status("n1", 1, Group(shard=0, term=3, leads=True))
    story.status("n2", 2, Group(shard=0, term=3 if broken else 4, leads=True))
    story.phase("converged", 3)
    story.phase("final", 3)


@planted("G17")
def the_replicas_never_agree(story: Story, broken: bool) -> None:
    story.status("n1", 1, Group(shard=0, applied=7, digest="x"))
    if not broken:
        story.phase("converged", 2)
    story.phase("final", 3)


@planted("G17")
def a_state_goes_back(story: Story, broken: bool) -> None:
    story.status("n1", 1, Group(shard=0, applied=7, digest="x"))
    story.status("n1", 2, Group(shard=0, applied=6 if broken else 8, digest="y"))
    story.phase("converged", 3)
    story.phase("final", 3)


@planted("G6")
def a_clock_that_jumps_within_a_leadership_ends_a_lease(story: Story, broken: bool) -> None:
    story.status("n1", 0, Group(shard=0, term=1, leads=True))
    story.fault("clock", (1, 9), amount_ms=30_000)
    story.status("n2", 2, Group(shard=0, term=1 if broken else 2, leads=not broken))
    story.create("a", (1, 2))
    story.claim("a", (3, 3.1), token=1, lease_s=30)
    story.claim("a", (20, 20.1), token=2, attempt=2)


@planted("G18")
def a_damaged_disk_costs_a_task(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.fault("corrupt", (2, 3))
    story.read("a", (9, 10), "" if broken else "PENDING", final=True)


@planted("G19")
def a_new_member_costs_a_task(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.fault("membership", (2, 3))
    story.read("a", (9, 10), "" if broken else "PENDING", final=True)
    _members(story, ("n1", "n2"), ("n1", "n2"))


@planted("G19")
def a_node_votes_that_nobody_let_in(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.fault("wipe", (2, 3))
    story.read("a", (9, 10), "PENDING", final=True)
    _members(story, ("n1", "n2"), ("n1", "n2", "n3") if broken else ("n1", "n2"))


@planted("G19")
def a_change_does_not_end(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.fault("membership", (2, 3))
    if broken:
        story.phase("unsettled", 4)
    story.read("a", (9, 10), "PENDING", final=True)
    _members(story, ("n1", "n2"), ("n1", "n2"))


def _members(story: Story, expected: tuple[str, ...], voters: tuple[str, ...]) -> None:
    story.status("n1", 11, Group(shard=0, voters=expected), p=MEMBERS)
    story.status("n2", 11, Group(shard=0, voters=voters), p=MEMBERS)
    story.phase(MEMBERS, 12, expected)


@planted("G20")
def a_shard_does_not_recover(story: Story, broken: bool) -> None:
    story.fault("kill", (1, 2))
    story.create("a", (3, 4), Type.INFO, key="k")
    story.create("b", (5, 20 if broken else 15), key="l")
    story.create("c", (20, 30), key="m", shard=1)


@planted("G21")
def a_webhook_is_told_of_an_end_that_was_none(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), webhook=True)
    story.claim("a", (2, 3), lease_s=1)
    story.delivery("a", 4.0 if broken else 8.0, content="1")
    story.claim("a", (5, 6), token=2, attempt=2)
    story.result("a", (7, 7.5), token=2, content="1")
    story.read("a", (9, 10), "COMPLETED", content="1", final=True)
    story.phase("delivered", 9)


@planted("G21")
def a_webhook_is_not_told(story: Story, broken: bool) -> None:
    _completed(story, webhook=True)
    if not broken:
        story.delivery("a", 10, content="1")
    story.phase("delivered", 20)


@planted("G21")
def a_webhook_is_told_something_else(story: Story, broken: bool) -> None:
    _completed(story, webhook=True)
    story.delivery("a", 10, content="2" if broken else "1")
    story.phase("delivered", 20)


@planted("G21")
def a_webhook_is_told_twice_as_two(story: Story, broken: bool) -> None:
    _completed(story, webhook=True)
    story.delivery("a", 10, content="1", delivery="d1")
    story.delivery("a", 11, content="1", delivery="d2" if broken else "d1")
    story.phase("delivered", 20)


@planted("G21")
def a_webhook_call_is_not_signed(story: Story, broken: bool) -> None:
    _completed(story, webhook=True)
    story.delivery("a", 10, content="1", signed=not broken)
    story.phase("delivered", 20)


@planted("G22")
def a_request_is_not_answered(story: Story, broken: bool) -> None:
    if not broken:
        story.fault("pause", (5, 9))
    story.fault("partition", (5, 9), ("n1",))
    story.create("a", (4, 20), Type.INFO, deadline_ms=10_000)
    story.create("b", (30, 31), deadline_ms=10_000)


@planted("G22")
def an_answer_is_kept_on_its_way(story: Story, broken: bool) -> None:
    detail = HELD if broken else HELD + AND_CLIENTS
    story.fault("packets", (5, 20), ("n1",), detail=detail)
    story.create("a", (4, 20), Type.INFO, deadline_ms=10_000)
    story.create("b", (30, 31), deadline_ms=10_000)


@planted("G22")
def a_request_is_lost_again_and_again(story: Story, broken: bool) -> None:
    detail = f"25%{LOST}" if broken else f"25%{LOST}{AND_CLIENTS}"
    story.fault("packets", (5, 15), ("n1",), detail=detail)
    story.create("a", (6, 20), Type.INFO, deadline_ms=10_000)
    story.create("b", (30, 31), deadline_ms=10_000)


@planted("G22")
def a_hostile_tenant_takes_what_others_need(story: Story, broken: bool) -> None:
    story.fault("hostile", (5, 15))
    for n in range(200):
        took_s = 0.5 if broken and n % 50 == 0 else 0.1
        story.create(f"a{n}", (6 + n / 50, 6 + n / 50 + took_s))
    story.create("b", (30, 31), deadline_ms=10_000)


@planted("G22")
def a_hostile_tenant_makes_nodes_refuse(story: Story, broken: bool) -> None:
    story.fault("hostile", (5, 15))
    if not broken:
        story.fault("pause", (5, 9))
    for n in range(200):
        kind = Type.INFO if n % 50 == 0 else Type.OK
        story.create(f"a{n}", (6 + n / 50, 6.1 + n / 50), kind)
    story.create("b", (30, 31), deadline_ms=10_000)


@planted("G9")
def a_hostile_tenant_hides_ready_tasks(story: Story, broken: bool) -> None:
    story.fault("hostile", (0, 20))
    story.create("a", (0, 1))
    story.claim("", (4, 5))
    story.claim("a", (6 if broken else 4.5, 7))


@planted("G25")
def a_follow_up_is_missing(story: Story, broken: bool) -> None:
    _ended_with_follow_ups(story)
    story.read("x", (30, 31), "" if broken else "PENDING", payload="1", parent="a", final=True)
    _found_by_key(story)


@planted("G25")
def a_follow_up_with_a_key_is_missing(story: Story, broken: bool) -> None:
    _ended_with_follow_ups(story)
    _found_by_id(story)
    # Where there is none, the create that looks for it makes one, which no result has made.
    _found_by_key(story, parent="" if broken else "a")


@planted("G25")
def half_of_an_unknown_result_is_there(story: Story, broken: bool) -> None:
    _ended_with_follow_ups(story, Type.INFO)
    _found_by_id(story)
    _found_by_key(story, parent="" if broken else "a")


@planted("G25")
def a_follow_up_of_a_result_that_did_not_stand(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3), lease_s=1)
    story.result("a", (4, 20), content="r", kind=Type.INFO, following=FOLLOWING)
    story.claim("a", (5, 6), token=2, attempt=2)
    story.result("a", (7, 8), token=2, content="other")
    if broken:
        story.claim("y", (10, 11), content="2")
    story.read("a", (20, 21), "COMPLETED", content="other", final=True)


@planted("G25")
def a_refused_result_makes_a_task(story: Story, broken: bool) -> None:
    story.create("a", (0, 1))
    story.claim("a", (2, 3))
    story.result("a", (4, 5), kind=Type.FAIL, following=FOLLOWING)
    if broken:
        story.claim("x", (10, 11), content="1")


@planted("G25")
def a_follow_up_is_made_twice(story: Story, broken: bool) -> None:
    _ended_with_follow_ups(story)
    story.claim("x", (10, 11), lease_s=1, content="1")
    story.claim("z" if broken else "x", (14, 15), token=2, attempt=2, content="1")
    _found_by_id(story)
    _found_by_key(story)


@planted("G25")
def a_follow_up_has_another_payload(story: Story, broken: bool) -> None:
    _ended_with_follow_ups(story)
    payload = "2" if broken else "1"
    story.read("x", (30, 31), "PENDING", payload=payload, parent="a", final=True)
    _found_by_key(story)


@planted("G25")
def a_repeated_result_names_another_task(story: Story, broken: bool) -> None:
    _ended_with_follow_ups(story)
    made = (Follow(task="z"), *MADE[1:]) if broken else MADE
    story.result("a", (6, 7), content="r", following=FOLLOWING, made=made)
    _found_by_id(story)
    _found_by_key(story)


@planted("G25")
def a_result_has_fewer_tasks_than_it_asked_for(story: Story, broken: bool) -> None:
    _ended_with_follow_ups(story, made=MADE[:1] if broken else MADE)
    _found_by_id(story)
    _found_by_key(story)


@planted("G25")
def a_shared_key_makes_a_task_of_neither_result(story: Story, broken: bool) -> None:
    for task in ("a", "b"):
        _ended_with_follow_ups(story, task=task, following=FOLLOWING[1:], made=MADE[1:])
    _found_by_key(story, parent="c" if broken else "b")


@planted("G28")
def two_tasks_of_a_key_are_leased_at_once(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), lane="k")
    story.create("b", (2, 3), lane="k")
    story.claim("a", (4, 5))
    story.result("a", (9, 10), content="1")
    story.claim("b", (7, 8) if broken else (9.5, 11))


@planted("G28")
def a_key_is_given_on_before_the_lease_has_ended(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), lane="k")
    story.create("b", (0, 1), lane="k" if broken else "other")
    story.claim("a", (4, 5), lease_s=20)
    story.claim("b", (15, 16), lease_s=20)


@planted("G28")
def a_key_has_more_in_progress_than_its_own_limit(story: Story, broken: bool) -> None:
    """Key 0 may have two, so the third one is too many, and two are not."""
    for n, task in enumerate("abc" if broken else "ab"):
        story.create(task, (n, n + 0.5), lane="key 0")
        story.claim(task, (4 + n, 4.5 + n))


@planted("G29")
def a_task_of_a_key_overtakes_another(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), lane="k")
    story.create("b", (2, 3) if broken else (0.5, 3), lane="k")
    story.claim("b", (4, 5), lease_s=1)
    story.result("b", (5, 6), content="1")
    story.claim("a", (7, 8))


@planted("G29")
def a_key_goes_on_while_its_task_backs_off(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), lane="k")
    story.create("b", (2, 3), lane="k")
    story.claim("a", (4, 5))
    story.give_back("a", (6, 7), nack_s=1)
    if not broken:
        story.cancel("a", (7, 8))
    story.claim("b", (9, 10))


@planted("G30")
def a_key_is_claimed_more_often_than_its_rate_allows(story: Story, broken: bool) -> None:
    """Let two go that a pause has saved up, and then a third."""
    for n, task in enumerate("abc"):
        at_s = 10 + (0.05 if broken else 0.5) * n
        story.create(task, (n, n + 0.5), lane="k")
        story.claim(task, (at_s, at_s + 0.01))
        story.result(task, (at_s + 0.01, at_s + 0.02), content=task)


@planted("G30")
def a_key_is_claimed_more_often_than_its_own_rate_allows(story: Story, broken: bool) -> None:
    """Key 1 saves up one, where the others save up two."""
    for n, task in enumerate("ab"):
        at_s = 10 + (0.5 if broken else 1.0) * n
        story.create(task, (n, n + 0.5), lane="key 1")
        story.claim(task, (at_s, at_s + 0.01))
        story.result(task, (at_s + 0.01, at_s + 0.02), content=task)


@planted("G30")
def a_key_goes_on_while_a_worker_holds_it(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), lane="k")
    story.create("b", (2, 3), lane="k")
    story.claim("a", (4, 5))
    story.give_back("a", (6, 6.5), nack_s=2, hold=True)
    story.cancel("a", (6.6, 6.7))
    story.claim("b", (7, 7.5) if broken else (8, 9))


@planted("G30")
def a_queue_goes_on_while_a_worker_holds_it(story: Story, broken: bool) -> None:
    for task in "ab":
        story.create(task, (0, 1), command="limited")
    story.claim("a", (4, 5))
    story.give_back("a", (6, 6.5), nack_s=2, queue="limited")
    story.claim("b", (7, 7.5) if broken else (8, 9))


@planted("G28")
def a_limit_of_two_queues_counts_one_alone(story: Story, broken: bool) -> None:
    for task, command in (("a", "charge"), ("b", "charge"), ("c", "refund")):
        story.create(task, (0, 1), command=command)
    story.claim("a", (2, 3))
    story.claim("b", (2, 3))
    if not broken:
        story.result("a", (3.5, 3.6))
    story.claim("c", (4, 5))


@planted("G30")
def a_key_goes_on_while_it_is_paused(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), lane="k")
    story.set_key("k", (2, 3), paused=True)
    story.claim("a", (4, 5) if broken else (6.5, 7))
    story.set_key("k", (6, 7))


@planted("G10")
def a_delivery_counts_that_held_its_key(story: Story, broken: bool) -> None:
    """Allow a number to come twice after a hold alone, which kills no task."""
    story.create("a", (0, 1), lane="k", attempts_max=1)
    story.claim("a", (4, 5))
    story.give_back("a", (6, 7), nack_s=1, hold=True, dead=broken)
    story.claim("a", (9, 10), token=2)


@planted("G10")
def a_delivery_does_not_count_though_nothing_was_held(story: Story, broken: bool) -> None:
    story.create("a", (0, 1), lane="k")
    story.claim("a", (4, 5))
    story.give_back("a", (6, 7), nack_s=1, hold=not broken)
    story.claim("a", (9, 10), token=2)


FOLLOWING = (Follow(content="1"), Follow(content="2", key="k"))
MADE = (Follow(task="x"), Follow(key="k"))


def _ended_with_follow_ups(
    story: Story,
    kind: Type = Type.OK,
    *,
    task: str = "a",
    following: Sequence[Follow] = FOLLOWING,
    made: Sequence[Follow] = MADE,
) -> None:
    story.create(task, (0, 1))
    story.claim(task, (2, 3))
    answered = made if kind is Type.OK else ()
    story.result(task, (4, 5), content="r", kind=kind, following=following, made=answered)
    story.read(task, (20, 21), "COMPLETED", content="r", made=made, final=True)


def _found_by_id(story: Story) -> None:
    story.read("x", (30, 31), "PENDING", payload="1", parent="a", final=True)


def _found_by_key(story: Story, *, parent: str = "a") -> None:
    story.create("y", (30, 31), key="k", content="2", final=True)
    story.read("y", (32, 33), "PENDING", payload="2", parent=parent, final=True)


def _completed(story: Story, *, webhook: bool) -> None:
    story.create("a", (0, 1), webhook=webhook)
    story.claim("a", (2, 3))
    story.result("a", (4, 5), content="1")
    story.read("a", (15, 16), "COMPLETED", content="1", final=True)


def test_a_follow_up_that_nobody_looked_for_is_not_judged() -> None:
    """The verdict stays open; it is not taken for kept."""
    story = Story()
    _ended_with_follow_ups(story)
    _found_by_id(story)
    verdict = verdicts(story.history())["G25"]

    assert verdict.valid is None
    assert "1 follow-ups were not looked for" in verdict.note


CASES = pytest.mark.parametrize(
    ("guarantee", "plot"),
    [pytest.param(guarantee, plot, id=f"{guarantee}-{name}") for guarantee, name, plot in PLOTS],
)


@CASES
def test_a_broken_promise_is_found(guarantee: str, plot: Plot) -> None:
    """The checker finds the violation and shows its events."""
    story = Story()
    plot(story, True)
    verdict = verdicts(story.history())[guarantee]

    assert verdict.valid is False
    assert verdict.violations


@CASES
def test_the_repaired_twin_breaks_nothing(guarantee: str, plot: Plot) -> None:
    """The same story without the violation is judged, and no checker objects to it."""
    story = Story()
    plot(story, False)
    found = verdicts(story.history())

    assert found[guarantee].valid is True, found[guarantee]
    assert [] == [v for v in found.values() if v.valid is False]


def test_every_guarantee_has_a_planted_violation() -> None:
    """Every checker has a history that it must refuse."""
    # See test_planted_schedules, test_planted_graphs, test_planted_groups, test_planted_uniques,
    # test_planted_steps, test_planted_bulk, test_planted_graces,
    # test_planted_watching, test_planted_rejects.
    elsewhere = {23, 24, 26, 27, *range(32, 42)}
    planted = {guarantee for guarantee, _, _ in PLOTS}

    assert set(PROMISES) == planted | {f"G{number}" for number in elsewhere}


def test_an_empty_history_proves_nothing() -> None:
    """Not a single guarantee is reported as kept."""
    found = verdicts(Story().history())

    assert {None} == {verdict.valid for verdict in found.values()}


def test_a_violation_of_a_register_shows_its_shortest_beginning() -> None:
    """Events after the contradiction are left out."""
    story = Story()
    story.create("a", (0, 1))
    story.claim("a", (2, 3))
    story.give_back("a", (4, 5))
    story.result("a", (6, 7))
    story.read("a", (8, 9), "COMPLETED")
    story.read("a", (10, 11), "COMPLETED")
    history = story.history()
    shown = max(
        (v for v in verdicts(history)["G7"].violations if "no order" in v.text),
        key=lambda v: len(v.events),
    )

    assert {F.CREATE, F.CLAIM, F.ABANDON, F.RESULT} == {history.events[i].f for i in shown.events}
