"""Verify checks: each of them objects when what it promises does not hold, and else does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from codeq_cluster.cli.work.verify_checks import Act, Delivery, Story, Verb, judge

LEASE_S = 3.0
PAYLOAD = '"p"'


def act(verb: Verb, called_s: float, *, content: str = "", accepted: bool = True) -> Act:
    """Return what a worker did in a moment."""
    return Act(
        verb=verb, content=content, called_s=called_s, told_s=called_s + 0.1, accepted=accepted
    )


def end(called_s: float, content: str = "done", *, accepted: bool = True) -> Act:
    """Return a result."""
    return act(Verb.COMPLETE, called_s, content=content, accepted=accepted)


def delivery(token: int, called_s: float, *acts: Act, payload: str = PAYLOAD) -> Delivery:
    """Return a delivery that came in a moment."""
    return Delivery(
        token=token,
        payload=payload,
        called_s=called_s,
        told_s=called_s + 0.1,
        lease_s=LEASE_S,
        acts=list(acts),
    )


def story(*deliveries: Delivery) -> Story:
    """Return a task whose create was repeated, that ended well and was read."""
    return Story(
        payload=PAYLOAD,
        ids=["t", "t"],
        answers=2,
        deliveries=list(deliveries),
        status="COMPLETED",
        content="done",
    )


def eventful() -> Story:
    """Return a story that gives every check something to judge, and breaks no promise."""
    return story(
        delivery(1, 0.0, act(Verb.HEARTBEAT, 2.0), end(9.0, "late", accepted=False)),
        delivery(2, 6.0, act(Verb.ABANDON, 6.5)),
        delivery(3, 7.0, end(7.5), end(7.7, accepted=False)),
    )


def lost(it: Story) -> None:
    """Lose it."""
    it.status, it.gone = "", True


def made_twice(it: Story) -> None:
    """Let the repeated create make another."""
    it.ids.append("u")


def altered(it: Story) -> None:
    """Alter the payload."""
    it.deliveries[1].payload = '"q"'


def finished_twice(it: Story) -> None:
    """Accept two ends."""
    it.deliveries[0].acts[-1].accepted = True


def other_end(it: Story) -> None:
    """Keep an end that was refused."""
    it.content = "late"


def foreign_end(it: Story) -> None:
    """Keep an end that nobody has sent, while none was accepted."""
    it.content = "of nobody"
    for each in it.acts:
        each.accepted &= not each.verb.ends


def handed_out_after_its_end(it: Story) -> None:
    """Hand it out once more."""
    it.deliveries.append(delivery(4, 11.0))


def early(it: Story) -> None:
    """Hand it out before the end of a lease that a heartbeat has extended."""
    it.deliveries[1].called_s, it.deliveries[1].told_s = 4.0, 4.9


def same_token(it: Story) -> None:
    """Use a token twice."""
    it.deliveries[1].token = 1


def lower_token(it: Story) -> None:
    """Give a lower token to a later delivery."""
    it.deliveries[0].token, it.deliveries[1].token = 2, 1


def late_act(it: Story) -> None:
    """Take a heartbeat of a worker that has lost its lease."""
    it.deliveries[0].acts.append(act(Verb.HEARTBEAT, 6.2))


BROKEN: dict[Callable[[Story], None], str] = {
    lost: "every acknowledged task is there and has ended",
    made_twice: "one idempotency key makes one task",
    altered: "each payload comes as it was sent",
    finished_twice: "no task is finished twice, and its end is the accepted one",
    other_end: "no task is finished twice, and its end is the accepted one",
    foreign_end: "no task is finished twice, and its end is the accepted one",
    handed_out_after_its_end: "a task that has ended is not handed out",
    early: "no lease ends early",
    same_token: "each delivery has a greater token than the one before",
    lower_token: "each delivery has a greater token than the one before",
    late_act: "a worker that has lost its lease is refused",
}


def broken(it: Story) -> set[str]:
    """Return the promises that are judged broken."""
    return {each.promise for each in judge([it]) if each.broken}


def test_a_run_that_keeps_every_promise_is_judged_so() -> None:
    """Each check has something to judge."""
    assert [] == [str(each) for each in judge([eventful()]) if not each.holds]


@pytest.mark.parametrize("plant", BROKEN, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_noticed(plant: Callable[[Story], None]) -> None:
    """The check that it breaks objects."""
    it = eventful()
    plant(it)

    assert BROKEN[plant] in broken(it)


def test_without_facts_nothing_is_known() -> None:
    """No promise holds, and none is broken."""
    checks = judge([])

    assert not any(each.holds or each.broken for each in checks)
    assert {"unknown"} == {str(each).split()[0] for each in checks}


@pytest.mark.parametrize("field", ["unread", "cancelled"])
def test_a_task_that_was_not_seen_to_end_leaves_it_open_whether_any_is_lost(field: str) -> None:
    """An unread task may be there or not; a cancelled one has an end that no worker has sent."""
    it = eventful()
    if field == "unread":
        it.status = it.content = ""
    else:
        it.cancelled, it.content = True, "CANCELLED"
    found = judge([eventful(), it])

    assert [False, True] == [each.holds for each in found[:2]]
    assert not any(each.broken for each in found)


def test_a_worker_that_gave_its_task_up_may_be_followed_at_once() -> None:
    """An abandon whose answer never came may have had its effect."""
    given_up = act(Verb.ABANDON, 0.5, accepted=False)

    assert set() == broken(story(delivery(1, 0.0, given_up), delivery(2, 1.0, end(1.5))))
