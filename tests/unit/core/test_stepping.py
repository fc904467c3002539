"""Stepping: bounds, keys, budgets, deletion, and the way of steps to another cluster."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.budget import Budget
from codeq_cluster.core.claiming import CLAIM_PAYLOAD_BYTES_MAX
from codeq_cluster.core.durable import (
    BOUNDS_OF,
    CLEARED_MAX,
    PARK_MS_MAX,
    SIGNALS_MAX,
    STEP_BYTES_MAX,
    STEPS_MAX,
    UNREAD_MAX,
    Park,
    RecordStep,
    SendSignal,
    Signal,
    Step,
)
from codeq_cluster.core.faults import task_fault
from codeq_cluster.core.groups import CreateGroup
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.lane import FlowRule, PerKey, SetFlow
from codeq_cluster.core.new_task import CreateKeyed, CreateUnique
from codeq_cluster.core.operations import Delete, Import, Requeue, Revise, Submit, UndoRequeue
from codeq_cluster.core.outcomes import (
    Changed,
    Created,
    Imported,
    Rejected,
    Rejection,
    Signalled,
    StepStands,
)
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stepping import durable_of, steps_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State
from codeq_cluster.core.unique import On, UniqueTerms

from .shard import Shard, create

SECOND_MS = 1000
DAY_MS = 86_400_000
_HELD: dict[str, Any] = {"id": "t", "tenant": "acme", "worker": "ann"}
DONE = Submit(**_HELD, request="s", status="COMPLETED", body="{}")
NACK = Nack(**_HELD, request="n", delay_ms=SECOND_MS)
FULL = '"' + "x" * (STEP_BYTES_MAX - 2) + '"'


def record(name: str, value: str = "1", **fields: Any) -> RecordStep:
    """Return the record of a step of task `t`."""
    return replace(RecordStep(**_HELD, name=name, value=value, extend_ms=60_000), **fields)


def park(step: str = "w", **fields: Any) -> Park:
    """Return the park of task `t`."""
    return replace(Park(**_HELD, step=step, extend_ms=60_000), **fields)


def send(number: int = 0, **fields: Any) -> SendSignal:
    """Return a signal to task `t`."""
    signal = SendSignal(request=f"g{number}", id="t", tenant="acme", name="go", payload="1")
    return replace(signal, **fields)


def begun(rules: LifetimeRules | None = None, **fields: Any) -> Shard:
    """Return a shard with task `t`, which a worker holds."""
    shard = Shard() if rules is None else Shard(rules)
    shard.create(**fields)
    assert ["t"] == shard.claim()
    return shard


def refusal(outcome: object) -> tuple[Rejection, str]:
    """Return why something was refused."""
    assert isinstance(outcome, Rejected), outcome
    return outcome.rejection, outcome.limit


def test_a_task_has_a_thousand_steps_and_no_more() -> None:
    """A wait counts as well, and what is recorded is still answered."""
    shard = begun()
    for number in range(STEPS_MAX):
        assert isinstance(shard.ask(record(str(number))), StepStands)

    assert (Rejection.TOO_MANY, "steps") == refusal(shard.ask(record("one more")))
    assert (Rejection.TOO_MANY, "steps") == refusal(shard.ask(park()))
    assert isinstance(shard.ask(record("7")), StepStands)
    assert STEPS_MAX == len(steps_of(shard.view, shard.task()))


def test_signals_never_keep_a_step_from_being_recorded() -> None:
    """They fill one half of what may stand beside a task."""
    shard = begun()
    sent = 0
    while not isinstance(refused := shard.ask(send(sent, payload=FULL)), Rejected):
        sent += 1
    recorded = 0
    while not isinstance(full := shard.ask(record(str(recorded), FULL)), Rejected):
        recorded += 1
    size = durable_of(shard.task()).bytes

    assert (Rejection.TOO_MANY, "signalBytes") == refusal(refused)
    assert (Rejection.TOO_MANY, "stepBytes") == refusal(full)
    assert (15, 16) == (sent, recorded)
    assert size == sum(row.size for row in [*_rows(shard, ItemKind.STEP), *_rows(shard)])
    assert size <= BOUNDS_OF["stepBytes"][1]


def test_steps_never_keep_a_signal_from_its_task_before_all_is_full() -> None:
    """A task that has recorded more than signals may fill is still signalled."""
    shard = begun()
    for number in range(30):
        shard.ask(record(str(number), FULL))
    shard.ask(park(signal="go"))

    assert Signalled() == shard.ask(send())
    assert State.READY is shard.task().state
    assert ["t"] == shard.claim()
    assert Signalled() == shard.ask(send(1, payload=FULL))
    assert (Rejection.TOO_MANY, "stepBytes") == refusal(shard.ask(send(2, payload=FULL)))


def test_a_task_keeps_a_hundred_unread_signals_and_remembers_a_thousand() -> None:
    """A wait makes room for another one."""
    shard = begun()
    for number in range(UNREAD_MAX):
        shard.ask(send(number))
    unread = refusal(shard.ask(send(UNREAD_MAX)))
    for number in range(UNREAD_MAX, SIGNALS_MAX):
        shard.ask(park(f"w{number % 900}", signal="go"))
        shard.ask(send(number))
    shard.ask(park("last", signal="go"))
    all_ = refusal(shard.ask(send(SIGNALS_MAX)))

    assert (Rejection.TOO_MANY, "unreadSignals") == unread
    assert (Rejection.TOO_MANY, "signals") == all_
    assert SIGNALS_MAX == len(_rows(shard))


def test_signals_count_in_the_budget_and_steps_are_never_refused_for_it() -> None:
    """A tenant without room can still go on with what it has begun."""
    shard = begun(LifetimeRules(budget=Budget(bytes_max=100)), payload='"' + "x" * 90 + '"')

    assert (Rejection.BUDGET_EXCEEDED, "storedBytes") == refusal(shard.ask(send(payload=FULL)))
    assert isinstance(shard.ask(record("a", FULL)), StepStands)
    assert 92 + 1 + len(FULL) == shard.view.usage("acme").stored_bytes


def test_a_wait_lasts_a_year_at_most() -> None:
    """An instant beyond it, and a wait for a signal alone, end with it."""
    for wait in ({"until_ms": 2**60}, {"signal": "go"}, {"wait_ms": 2**60}):
        shard = begun()
        now_ms = shard.view.now_ms
        shard.ask(park(**wait))

        assert now_ms + PARK_MS_MAX == shard.task().due_ms


def test_a_wait_that_goes_on_keeps_its_instant() -> None:
    """A dead letter that is requeued meets the wait as it was, and the lost lease cannot."""
    shard = begun(ttl_ms=5000)
    first = shard.task().lease_token
    shard.ask(park(wait_ms=DAY_MS, token=first))
    due_ms = shard.task().due_ms
    shard.wait(5000)
    assert State.DEAD is shard.task().state
    repeated = shard.ask(park(wait_ms=DAY_MS, token=first))

    assert "" == shard.task().parked_at
    assert (Rejection.NOT_IN_PROGRESS, "") == refusal(repeated)
    assert due_ms == steps_of(shard.view, shard.task())[0].until_ms


def test_a_step_begins_the_attempts_anew_and_a_park_costs_none() -> None:
    """A function may fail at each step as often as a task may."""
    shard = begun(max_attempts=2)
    shard.ask(NACK)
    shard.wait(SECOND_MS)
    shard.claim()
    assert 2 == shard.task().attempts
    shard.ask(record("a"))
    assert 1 == shard.task().attempts
    shard.ask(park(wait_ms=SECOND_MS))
    history = shard.task().history
    shard.wait(SECOND_MS)
    shard.claim()

    assert (1, history) == (shard.task().attempts, shard.task().history)
    shard.ask(replace(NACK, request="m"))
    assert State.DELAYED is shard.task().state


def test_a_requeue_that_is_undone_leaves_no_more_attempts_than_there_are() -> None:
    """Steps begin the attempts anew, so the history of one life may hold more than that."""
    shard = begun(max_attempts=2)
    for number in range(4):
        shard.ask(record(str(number)))
        shard.ask(replace(NACK, request=f"n{number}"))
        shard.wait(SECOND_MS)
        shard.claim()
    shard.ask(replace(NACK, request="last"))
    assert State.DEAD is shard.task().state
    name: dict[str, Any] = {"tenant": "acme", "ids": ("t",), "by": "ops"}
    shard.ask(Requeue(**name, request="r"))
    shard.ask(UndoRequeue(**name, request="u", requeue="r"))

    assert (State.DEAD, 2) == (shard.task().state, shard.task().attempts)
    assert "" == task_fault(shard.task())


def test_a_parked_task_gives_its_place_to_the_next_of_its_key_unless_it_keeps_it() -> None:
    """Once its wait is over it goes before those that came later."""
    for keeps, claimed in ((False, ["u"]), (True, [])):
        shard = Shard()
        shard.ask(SetFlow(FlowRule("acme", "render", 1, PerKey(), 0)))
        for name in "tuv":
            shard.ask(CreateKeyed(create(name, key="k")))
        shard.claim()
        shard.ask(park(signal="go", keeps_key=keeps))

        assert claimed == shard.claim()
        shard.ask(send())
        if not keeps:
            assert State.HELD is shard.task().state
            shard.ask(replace(DONE, id="u"))
        assert ["t"] == shard.claim()


def test_what_has_begun_is_not_replaced() -> None:
    """A create with its unique key waits behind it, or gets it as it is."""
    shard = Shard()
    for name, on in (("t", On.REPLACE), ("u", On.REPLACE), ("v", On.KEEP_LAST)):
        terms = UniqueTerms(key="u", on=on)
        made = shard.ask(CreateUnique(create(name, payload=f'"{name}"', unique=terms)))
        assert isinstance(made, Created)
        if name == "t":
            shard.claim()
            shard.ask(park(signal="go"))
        else:
            assert ("returned", "queued")[name == "v"] == made.unique

    assert '"t"' == shard.view.payload("t")


def test_a_claim_counts_steps_in_its_bytes() -> None:
    """A batch ends where its answer is full."""
    shard = Shard()
    names = [f"t{number}" for number in range(6)]
    for name in names:
        shard.create(name)
        shard.claim()
        for number in range(24):
            shard.ask(record(str(number), FULL, id=name))
        shard.ask(park(id=name, wait_ms=SECOND_MS))
    shard.wait(SECOND_MS)
    handed = shard.claim(count=6)

    size = 24 * STEP_BYTES_MAX
    assert 1 <= len(handed) <= CLAIM_PAYLOAD_BYTES_MAX // size < 6


def test_rows_go_with_their_task_some_at_a_time() -> None:
    """The task stays, ended, until the last of them is gone."""
    shard = begun()
    for number in range(CLEARED_MAX + 10):
        shard.ask(record(str(number)))
    shard.ask(send())
    shard.ask(DONE)
    shard.ask(Delete(request="d", tenant="acme", ids=("t",), by="ops"))

    assert State.DONE is shard.task().state
    assert 11 == len(_rows(shard)) + len(_rows(shard, ItemKind.STEP))
    shard.wait(1)
    assert shard.view.task("t") is None
    assert [] == [*_rows(shard), *_rows(shard, ItemKind.STEP)]


def test_a_dead_letter_that_is_deleted_is_not_revived() -> None:
    """While the rest of its rows goes: it would run its first steps again."""
    shard = begun(max_attempts=1)
    for number in range(CLEARED_MAX + 10):
        shard.ask(record(str(number)))
    shard.ask(NACK)
    assert State.DEAD is shard.task().state
    named = {"request": "d", "tenant": "acme", "by": "ops"}
    assert Changed(1) == shard.ask(Delete(**named, ids=("t",)))
    assert State.DEAD is shard.task().state
    revise = Revise(**named, id="t", payload="{}", endings=shard.task().endings)

    assert Changed(0) == shard.ask(Requeue(**named, ids=("t",)))
    assert Changed(0) == shard.ask(revise)
    shard.wait(1)
    assert shard.view.task("t") is None


def test_a_deleted_member_goes_although_its_group_goes_on() -> None:
    """An open group keeps its ended members, but none that somebody has deleted."""
    shard = Shard()
    tasks = (replace(create(), id="", tenant=""),)
    shard.ask(CreateGroup(tenant="acme", id="g", digest="", tasks=tasks))
    [name] = shard.claim()
    for number in range(CLEARED_MAX + 1):
        shard.ask(record(str(number), id=name))
    shard.ask(replace(DONE, id=name))
    shard.ask(Delete(request="d", tenant="acme", ids=(name,), by="ops"))
    shard.wait(1)

    assert shard.view.task(name) is None
    assert [] == _rows(shard, ItemKind.STEP)


def test_a_task_of_another_tenant_does_not_exist() -> None:
    """Neither a step nor a signal tells that it is there."""
    shard = begun()
    for operation in (
        record("a", tenant="other"),
        park(tenant="other", signal="go"),
        send(tenant="other"),
    ):
        assert (Rejection.NOT_FOUND, "") == refusal(shard.ask(operation))


def test_an_import_brings_what_is_beside_a_task() -> None:
    """The wait goes on there, and signals stay in their order, before those to come."""
    here, there = begun(), Shard()
    here.ask(record("a", '{"charge":7}'))
    for number in range(3):
        here.ask(send(number, payload=str(number)))
    here.ask(park("b", signal="stop", wait_ms=DAY_MS))
    beside = [*_rows(here), *_rows(here, ItemKind.STEP)]
    arrival = Arrival(task=here.task(), payload="{}", beside=tuple(beside))
    whole = Import(request="i", tenant="new", by="ops", source="b", shards=1)
    outcome = there.ask(replace(whole, tasks=(arrival,)))

    assert isinstance(outcome, Imported)
    assert 1 == outcome.imported
    task = there.task()
    assert ("b", durable_of(here.task())) == (task.parked_at, durable_of(task))
    assert ["a", "b"] == [step.name for step in steps_of(there.view, task)]
    there.ask(send(9, tenant="new", payload="9"))
    signals = [row for row in there.items(ItemKind.SIGNAL) if isinstance(row, Signal)]
    signals.sort(key=lambda row: row.seq)
    assert ["0", "1", "2", "9"] == [row.payload for row in signals]


@pytest.mark.parametrize("first", ["time", "signal"])
def test_whichever_is_first_in_the_log_ends_a_wait(first: str) -> None:
    """The other one changes nothing of it: a late signal is kept for the next wait."""
    shard = begun()
    shard.ask(park(signal="go", wait_ms=SECOND_MS))
    shard.view.now_ms += SECOND_MS
    if first == "time":
        shard.wait(0)
        shard.ask(send())
    else:
        shard.ask(send())
        shard.wait(0)
    [step] = steps_of(shard.view, shard.task())

    assert (False, "1" if first == "signal" else "") == (step.is_open, step.value)
    assert int(first == "time") == durable_of(shard.task()).unread
    assert State.READY is shard.task().state


def _rows(shard: Shard, kind: ItemKind = ItemKind.SIGNAL) -> list[Step | Signal]:
    return [row for row in shard.items(kind) if isinstance(row, Step | Signal)]
