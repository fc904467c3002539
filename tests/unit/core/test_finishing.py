"""Finishing: a result and the tasks that follow it are one decision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace as with_rules

import pytest
from msgspec.structs import replace

from codeq_cluster.core.budget import Budget
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Finish, PutTopic, Submit
from codeq_cluster.core.outcomes import Outcome, Rejected, Rejection, Submitted
from codeq_cluster.core.relays import Relay
from codeq_cluster.core.sharding import shard_of, shard_of_key
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import FollowUp, More, State
from codeq_cluster.core.task_ids import derived

from .shard import RULES, Shard

SHARDS = 2
HOME = shard_of("t", SHARDS)
AWAY = 1 - HOME


def key_on(shard: int) -> str:
    """Return an idempotency key of a shard."""
    keys = (f"k{number}" for number in range(100))
    return next(key for key in keys if shard_of_key("acme", key, SHARDS) == shard)


def following(command: str = "scan", **fields: object) -> Create:
    """Return a task of `next`."""
    return replace(Create(command=command, payload="{}"), **fields)


def finish(
    following: Iterable[Create], *, request: str = "s", digest: str = "d", worker: str = "ann"
) -> Finish:
    """Return a result of `t` with its follow-ups."""
    submit = Submit(
        request=request, id="t", tenant="acme", worker=worker, status="COMPLETED", body="{}"
    )
    return Finish(submit=submit, next=tuple(following), digest=digest, shards=SHARDS)


def named(outcome: Outcome) -> tuple[FollowUp, ...]:
    """Return the names of the follow-ups in an accepted result."""
    assert isinstance(outcome, Submitted)
    return outcome.result.next


@pytest.fixture
def shard() -> Shard:
    """Return a shard with a task that `ann` holds."""
    shard = Shard()
    shard.create(trace_parent="00-1-2-01")
    shard.claim()
    return shard


def test_the_tasks_that_follow_are_there_with_the_result(shard: Shard) -> None:
    """They have their parent's tenant and trace, and name it and the first of the chain."""
    names = named(shard.ask(finish([following(), following("zip", delay_ms=5)])))
    first, second = (shard.task(name.id) for name in names)

    assert State.DONE is shard.task().state
    assert (State.READY, State.DELAYED) == (first.state, second.state)
    assert {("acme", "00-1-2-01", More(parent_id="t", root_id="t"))} == {
        (each.tenant, each.trace_parent, each.more) for each in (first, second)
    }


def test_a_follow_up_of_a_follow_up_names_the_first_task_of_the_chain(shard: Shard) -> None:
    """The parent of the second is the first, and the root of both is the same."""
    [first] = named(shard.ask(finish([following()])))
    shard.claim(commands=("scan",), request="second")
    onward = finish([following()])
    submit = replace(onward.submit, id=first.id, request="s2")
    [second] = named(shard.ask(replace(onward, submit=submit)))

    assert More(parent_id=first.id, root_id="t") == shard.task(second.id).more


def test_ids_follow_from_the_parent_its_ending_and_the_position(shard: Shard) -> None:
    """Only the last four characters, which place the task on its parent's shard, are free."""
    names = named(shard.ask(finish([following(), following()])))

    assert [derived("acme", f"t.1.{position}")[:-4] for position in (0, 1)] == [
        name.id[:-4] for name in names
    ]
    assert {HOME} == {shard_of(name.id, SHARDS) for name in names}


def test_a_repeated_result_gets_the_stored_one(shard: Shard) -> None:
    """By its request or by its content; no task is made again."""
    first = shard.ask(finish([following()]))
    again = shard.ask(finish([following()]))
    by_another_request = shard.ask(finish([following()], request="s2"))

    assert first == again == by_another_request
    assert 2 == len(shard.view.tasks)


def test_a_result_with_other_follow_ups_is_another_result(shard: Shard) -> None:
    """It is refused, and so is the result without any; nothing is made."""
    shard.ask(finish([following()]))
    other = finish([following("zip")], request="s2", digest="e")

    assert Rejected(Rejection.NOT_IN_PROGRESS) == shard.ask(other)
    assert Rejected(Rejection.NOT_IN_PROGRESS) == shard.ask(replace(other.submit, request="s3"))
    assert 2 == len(shard.view.tasks)


def test_a_refused_result_makes_nothing(shard: Shard) -> None:
    """A worker that does not hold the task can make nothing follow it."""
    assert Rejected(Rejection.NOT_OWNER) == shard.ask(finish([following()], worker="bob"))
    assert ["t"] == list(shard.view.tasks)


def test_a_refused_follow_up_refuses_the_result(shard: Shard) -> None:
    """The topic's tiers bind the last of the tasks; the first is not made either."""
    topic = PutTopic(request="p", tenant="acme", name="tiered", by="op", priority_tiers=(3,))
    shard.ask(topic)
    refused = finish([following(), following("tiered")])

    assert Rejected(Rejection.INVALID_PRIORITY, "3") == shard.ask(refused)
    assert ["t"] == list(shard.view.tasks)
    assert State.LEASED is shard.task().state
    assert [] == shard.items(ItemKind.RELAY)


def test_a_follow_up_for_another_shard_is_refused_here() -> None:
    """A relay that the other shard refused could not be answered any more."""
    shard = Shard()
    shard.create()
    shard.claim()
    shard.ask(PutTopic(request="p", tenant="acme", name="tiered", by="op", priority_tiers=(3,)))
    refused = finish([following("tiered", idempotency_key=key_on(AWAY))])

    assert Rejected(Rejection.INVALID_PRIORITY, "3") == shard.ask(refused)
    assert State.LEASED is shard.task().state


@pytest.mark.parametrize(("most", "made"), [(2, 0), (3, 2)])
def test_follow_ups_begin_no_more_queues_than_a_tenant_may_have(most: int, made: int) -> None:
    """The queues that one result begins count together."""
    shard = Shard(with_rules(RULES, queues_max=most))
    shard.create()
    shard.claim()
    outcome = shard.ask(finish([following("scan"), following("zip")]))

    assert isinstance(outcome, Submitted) == bool(made)
    assert 1 + made == len(shard.view.tasks)


def test_no_budget_refuses_a_follow_up() -> None:
    """The work that it follows is done."""
    shard = Shard(with_rules(RULES, budgets={"acme": Budget(waiting_max=1, bytes_max=2)}))
    shard.create()
    shard.claim()

    assert 2 == len(named(shard.ask(finish([following(), following()]))))


def test_a_key_of_this_shard_makes_one_task(shard: Shard) -> None:
    """A taken key names the task that has it, whatever its content."""
    key = key_on(HOME)
    shard.create("holder", idempotency_key=key, fingerprint="f", payload="[]")
    before = len(shard.view.tasks)
    names = named(shard.ask(finish([following(idempotency_key=key, fingerprint="g")])))
    row = shard.view.keyed("acme", key)

    assert (FollowUp(key=key),) == names
    assert before == len(shard.view.tasks)
    assert row is not None
    assert "holder" == row.task_id


def test_a_key_of_another_shard_is_relayed(shard: Shard) -> None:
    """The relay has the whole task, with an id of the other shard, and the next number to it."""
    key = key_on(AWAY)
    wanted = following(idempotency_key=key, fingerprint="g")
    names = named(shard.ask(finish([following(), wanted, replace(wanted, idempotency_key="")])))
    [relay] = shard.items(ItemKind.RELAY)

    assert isinstance(relay, Relay)
    assert FollowUp(key=key) == names[1]
    assert ("t.1.1", AWAY, 0) == (relay.id, relay.to, relay.taken_ms)
    assert relay.number > 0
    assert ("acme", key, "g") == (
        relay.effect.create.tenant,
        relay.effect.create.idempotency_key,
        relay.effect.create.fingerprint,
    )
    assert derived("acme", "t.1.1")[:-4] == relay.effect.create.id[:-4]
    assert AWAY == shard_of(relay.effect.create.id, SHARDS)
    assert More(parent_id="t", root_id="t") == relay.effect.more
    assert [] == shard.items(ItemKind.RELAY_LINK)
    assert {"t", names[0].id, names[2].id} == set(shard.view.tasks)
