"""Relaying: a relay acts once, however often it is sent and whatever became of its effect."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.faults import item_fault
from codeq_cluster.core.items import Aside, SetAside, aside_id
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Delete, Finish, Retry, Submit
from codeq_cluster.core.outcomes import Changed, Taken
from codeq_cluster.core.relays import (
    KEPT_MS,
    Relay,
    Relayed,
    RelayedTask,
    RelayLink,
    RelaysMissed,
    RelaysTaken,
    TakeRelays,
)
from codeq_cluster.core.relays import relayed as sent_form
from codeq_cluster.core.sharding import shard_of, shard_of_key
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, State

from .shard import Shard

ORIGIN = 5
SHARDS = 2
AWAY = 1 - shard_of("t", SHARDS)
KEYS = [key for n in range(99) if shard_of_key("acme", key := f"k{n}", SHARDS) == AWAY][:3]


def relayed(number: int, *, key: str = "", task_id: str = "") -> Relayed:
    """Return a relay from the shard `ORIGIN`."""
    create = Create(
        id=task_id or f"r{number}",
        tenant="acme",
        command="render",
        payload="{}",
        idempotency_key=key,
        fingerprint="f" if key else "",
    )
    return Relayed(number, RelayedTask(create, More(parent_id="p", root_id="p")))


def take(*relays: Relayed, after: int = 0) -> TakeRelays:
    """Return what that shard's leader sends."""
    return TakeRelays(origin=ORIGIN, after=after, relays=relays)


def last_from_origin(shard: Shard) -> int:
    """Return the number of the last relay that has acted here."""
    link = shard.view.item(ItemKind.RELAY_LINK, "", f"from.{ORIGIN}")
    assert link is None or isinstance(link, RelayLink)
    return link.number if link is not None else 0


def sending(*keys: str) -> Shard:
    """Return a shard whose task `t` has ended with a follow-up for each key of another shard."""
    shard = Shard()
    shard.create()
    shard.claim()
    submit = Submit(request="s", id="t", tenant="acme", worker="ann", status="COMPLETED", body="{}")
    following = tuple(Create(command="scan", payload="{}", idempotency_key=key) for key in keys)
    shard.ask(Finish(submit=submit, next=following, digest="d", shards=SHARDS))
    return shard


def relay(shard: Shard, position: int = 0) -> Relay:
    """Return the relay of a position in `next`."""
    found = shard.view.item(ItemKind.RELAY, "acme", f"t.1.{position}")
    assert isinstance(found, Relay)
    return found


def link_to(shard: Shard) -> RelayLink:
    """Return the link to the other shard."""
    link = shard.view.item(ItemKind.RELAY_LINK, "", f"to.{AWAY}")
    assert isinstance(link, RelayLink)
    return link


def taken(shard: Shard, *positions: int) -> RelaysTaken:
    """Return the leader's word that the other shard has these relays."""
    relays = tuple(("acme", each.id, each.number) for each in (relay(shard, p) for p in positions))
    return RelaysTaken(to=AWAY, number=relays[-1][2], relays=relays)


def test_relays_are_done_in_order_and_their_number_is_kept() -> None:
    """The number of the last one is in the same decision as the tasks."""
    shard = Shard()

    assert Taken(2) == shard.ask(take(relayed(1), relayed(2)))
    assert Taken(4) == shard.ask(take(relayed(4), after=2))
    assert {"r1", "r2", "r4"} == set(shard.view.tasks)
    assert 4 == last_from_origin(shard)


def test_a_relay_that_was_sent_before_changes_nothing() -> None:
    """The tasks are there, and the answer is the same."""
    shard = Shard()
    first = shard.ask(take(relayed(1), relayed(2)))
    before = dict(shard.view.tasks)

    assert first == shard.ask(take(relayed(1), relayed(2)))
    assert before == shard.view.tasks


@pytest.mark.parametrize("key", ["", "k"])
def test_a_relay_acts_once_even_if_its_task_is_gone(key: str) -> None:
    """The task has run, ended and been deleted, and its key is free again."""
    shard = Shard()
    shard.ask(take(relayed(1, key=key)))
    shard.claim()
    shard.ask(Submit(request="s", id="r1", tenant="acme", worker="ann", status="COMPLETED"))
    assert Changed(1) == shard.ask(Delete(request="d", tenant="acme", ids=("r1",), by="op"))

    assert Taken(2) == shard.ask(take(relayed(1, key=key), relayed(2)))
    assert ["r2"] == list(shard.view.tasks)


def caused(ago_ms: int, **fields: int) -> tuple[Shard, Relayed]:
    """Return a shard, and a relay whose cause was decided so long ago on another shard."""
    shard, made = Shard(), relayed(1)
    assert isinstance(made.effect, RelayedTask)
    effect = replace(made.effect, create=replace(made.effect.create, **fields))
    return shard, replace(made, effect=effect, at_ms=shard.view.now_ms - ago_ms)


@pytest.mark.parametrize(("delay_ms", "left_ms"), [(0, 0), (300, 0), (400, 0), (1000, 600)])
def test_a_delay_begins_when_the_parent_ended(delay_ms: int, left_ms: int) -> None:
    """A relay that was on its way for 400 ms leaves so much less of the delay."""
    shard, relay = caused(400, delay_ms=delay_ms)
    shard.ask(take(relay))
    task = shard.task("r1")

    assert (State.DELAYED if left_ms else State.READY) is task.state
    assert left_ms == (task.due_ms - shard.view.now_ms if left_ms else task.due_ms)
    assert shard.view.now_ms == task.created_ms


def test_a_time_to_live_begins_when_the_parent_ended() -> None:
    """A task that comes too late is never leased: it is a dead letter."""
    shard, relay = caused(400, ttl_ms=1000)
    shard.ask(take(relay))
    left_ms = shard.task("r1").expires_ms - shard.view.now_ms
    late, relay = caused(1000, ttl_ms=1000)
    late.ask(take(relay))

    assert 600 == left_ms
    assert [] == late.claim(commands=("render",), count=1)
    assert 1 == late.wait(0)
    assert State.DEAD is late.task("r1").state


def test_a_shard_whose_clock_is_ahead_delays_nothing() -> None:
    """Nothing is caused later than now: a task without a delay is ready, another waits in full."""
    shard, relay = caused(-5000)
    shard.ask(take(relay))
    other, delayed = caused(-5000, delay_ms=1000, ttl_ms=2000)
    other.ask(take(delayed))
    task = other.task("r1")

    assert State.READY is shard.task("r1").state
    assert other.view.now_ms + 1000 == task.due_ms
    assert other.view.now_ms + 2000 == task.expires_ms


def test_what_is_sent_of_a_relay_names_the_end_of_its_parent() -> None:
    """It was decided with that end, and is sent later, perhaps again."""
    shard = sending(KEYS[0])
    ended_ms = shard.task("t").updated_ms
    shard.wait(60_000)

    assert ended_ms == sent_form(relay(shard)).at_ms


def test_a_gap_is_refused() -> None:
    """The other shard counts on relays that are not here: nothing may be done before them."""
    shard = Shard()
    shard.ask(take(relayed(1)))

    assert Taken(1) == shard.ask(take(relayed(4), after=3))
    assert ["r1"] == list(shard.view.tasks)
    assert 1 == last_from_origin(shard)


def test_an_empty_batch_asks_for_the_last_number() -> None:
    """It is answered without a change."""
    shard = Shard()
    shard.ask(take(relayed(3)))
    before = dict(shard.view.items)

    assert Taken(3) == shard.ask(take())
    assert before == shard.view.items


def test_shards_have_numbers_of_their_own() -> None:
    """What one shard has sent says nothing of another's relays."""
    shard = Shard()
    shard.ask(take(relayed(1)))
    other = replace(take(relayed(1, task_id="o1")), origin=ORIGIN + 1)

    assert Taken(1) == shard.ask(other)
    assert {"r1", "o1"} == set(shard.view.tasks)


def test_a_key_makes_one_task_among_relays_too() -> None:
    """Twice in one batch, or again in a later one: the first has it, and all numbers are kept."""
    shard = Shard()

    assert Taken(2) == shard.ask(take(relayed(1, key="k"), relayed(2, key="k")))
    assert Taken(3) == shard.ask(take(relayed(3, key="k"), after=2))
    assert ["r1"] == list(shard.view.tasks)


def test_a_taken_relay_is_kept_for_a_while() -> None:
    """It leaves the line at once; a backup that runs can still copy it."""
    shard = sending(KEYS[0])
    number = relay(shard).number
    line = relay(shard).sent_as
    assert Changed(1) == shard.ask(taken(shard, 0))

    assert (AWAY, number) == line
    assert relay(shard).sent_as is None
    assert 0 == shard.wait(KEPT_MS - 1)
    assert 1 == shard.wait(1)
    assert [] == shard.items(ItemKind.RELAY)
    assert number == link_to(shard).number


def test_relays_that_are_not_taken_are_kept() -> None:
    """Time alone deletes none."""
    shard = sending(KEYS[0])
    line = relay(shard).sent_as
    shard.wait(2 * KEPT_MS)

    assert line is not None
    assert line == relay(shard).sent_as


def test_a_report_that_comes_again_prolongs_nothing() -> None:
    """The relay ends when the first report says, and the link keeps its larger number."""
    shard = sending(*KEYS[:2])
    first, both = taken(shard, 0), taken(shard, 0, 1)
    shard.ask(both)
    before = dict(shard.view.items)
    shard.view.now_ms += 1
    shard.ask(first)

    assert before == shard.view.items


def test_a_report_of_another_number_leaves_the_relay_alone() -> None:
    """A relay that got a new number since is not the one that was taken."""
    shard = sending(KEYS[0])
    before = relay(shard)
    other = before.number + 1
    shard.ask(RelaysTaken(to=AWAY, number=other, relays=(("acme", "t.1.0", other),)))

    assert before == relay(shard)


def test_a_relay_that_was_set_aside_gets_a_new_number() -> None:
    """The one behind it was taken meanwhile, so its own number would change nothing any more."""
    shard = sending(*KEYS[:2])
    name = aside_id(ItemKind.RELAY, "t.1.0")
    timer = b"a row of the line"
    shard.ask(
        SetAside(tenant="acme", kind=ItemKind.RELAY, subject="t.1.0", timer=timer, reason="bug")
    )
    [aside] = shard.items(ItemKind.ASIDE)
    last = relay(shard, 1).number
    shard.ask(taken(shard, 1))
    retried = shard.ask(Retry(request="r", tenant="acme", ids=(name,), by="op"))
    again = shard.ask(Retry(request="r2", tenant="acme", ids=(name,), by="op"))

    assert isinstance(aside, Aside)
    assert (name, timer, "") == (aside.id, aside.timer, item_fault(aside))
    assert (Changed(1), Changed(0)) == (retried, again)
    assert (AWAY, relay(shard).number) == relay(shard).sent_as
    assert relay(shard).number > last == link_to(shard).number
    assert [] == shard.items(ItemKind.ASIDE)


def test_relays_that_the_other_shard_has_lost_are_sent_again() -> None:
    """From the first word on the line begins earlier; what is no longer kept is left alone."""
    shard = sending(*KEYS[:3])
    numbers = [relay(shard, position).number for position in range(3)]
    shard.ask(taken(shard, 0, 1, 2))
    shard.ask(RelaysMissed(to=AWAY, number=numbers[0]))
    begun = link_to(shard)
    names = (("acme", "t.1.0"), ("acme", "t.1.1"), ("acme", "t.1.2"), ("acme", "gone.1.0"))
    shard.ask(RelaysMissed(to=AWAY, number=numbers[0], relays=names))
    shard.ask(RelaysMissed(to=AWAY, number=numbers[0], done=True))

    assert (numbers[0], True) == (begun.number, begun.recalled_ms > 0)
    assert [None, (AWAY, numbers[1]), (AWAY, numbers[2])] == [
        relay(shard, position).sent_as for position in range(3)
    ]
    assert (numbers[0], 0) == (link_to(shard).number, link_to(shard).recalled_ms)
    shard.wait(KEPT_MS)
    assert ["t.1.1", "t.1.2"] == [each.id for each in shard.items(ItemKind.RELAY)]


def test_a_relay_that_is_taken_after_all_is_no_longer_set_aside() -> None:
    """Nothing is left for an operator to do."""
    shard = sending(KEYS[0])
    shard.ask(
        SetAside(tenant="acme", kind=ItemKind.RELAY, subject="t.1.0", timer=b"row", reason="slow")
    )
    shard.ask(taken(shard, 0))

    assert [] == shard.items(ItemKind.ASIDE)
    assert State.DONE is shard.task().state
