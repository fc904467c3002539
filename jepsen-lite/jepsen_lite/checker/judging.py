"""Judging: all checkers on one history, and the verdict of the run."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from jepsen_lite.checker.accounting import dishonest, invented, lost
from jepsen_lite.checker.attempts import exact
from jepsen_lite.checker.bulk import exactly_the_selection
from jepsen_lite.checker.completion import one_result, terminal_is_terminal
from jepsen_lite.checker.delays import not_before_due
from jepsen_lite.checker.follow_ups import made_with_results
from jepsen_lite.checker.graces import heard_and_ended
from jepsen_lite.checker.graphs import started_when_met
from jepsen_lite.checker.groups import completed_once
from jepsen_lite.checker.idempotency import one_task_a_key
from jepsen_lite.checker.isolation import unharmed
from jepsen_lite.checker.lanes import (
    at_rest,
    in_order_of_arrival,
    within_its_limit,
    within_its_rate,
)
from jepsen_lite.checker.leases import held_to_the_end, kept_up, tokens_grow
from jepsen_lite.checker.liveness import (
    abandoned_comes_back,
    answered_in_time,
    due_is_ready,
    writes_again,
)
from jepsen_lite.checker.membership import agree_who_they_are
from jepsen_lite.checker.order import first_in_first_out, higher_first
from jepsen_lite.checker.register import happened_at_moments
from jepsen_lite.checker.rejects import dead_at_once, lines_are_kept
from jepsen_lite.checker.replicas import converge
from jepsen_lite.checker.schedules import fired_once, overlap_as_asked
from jepsen_lite.checker.steps import recorded_once, woken_by_cause
from jepsen_lite.checker.tags import lists_are_sets
from jepsen_lite.checker.uniques import debounced, one_task_a_unique_key
from jepsen_lite.checker.validity import CALM_P99_MS, Demands, shortcomings, starved
from jepsen_lite.checker.verdict import Verdict, combined, judged, unknown
from jepsen_lite.checker.watching import without_a_gap
from jepsen_lite.checker.webhooks import told
from jepsen_lite.operations import History

PROMISES = {
    "G1": "no acknowledged task is lost",
    "G2": "nothing is invented or altered",
    "G3": "what was refused did not happen",
    "G4": "one idempotency key, one task",
    "G5": "lease tokens grow",
    "G6": "no lease ends early",
    "G7": "one result, from the holder of the lease",
    "G8": "terminal is terminal",
    "G9": "abandoned work comes back",
    "G10": "attempts and dead letters are exact",
    "G11": "delays hold",
    "G12": "first in, first out in a shard, command and priority",
    "G13": "higher priority first",
    "G14": "leases that are kept up survive failovers",
    "G15": "strong reads see what was answered",
    "G16": "durable through a power cut of all nodes",
    "G17": "replicas converge, one leader a term",
    "G18": "faults of storage are contained",
    "G19": "changes of membership are safe",
    "G20": "shards recover by themselves",
    "G21": "webhooks at least once, and true",
    "G22": "every request is answered honestly and in time",
    "G23": "one run a schedule and instant, and none is missing",
    "G24": "runs overlap as asked, and what did not fire is counted",
    "G25": "an accepted result has exactly its follow-ups",
    "G26": "no task starts before what it waits for, and each one starts or ends",
    "G27": "one completion task a group, after the last member, with true counts",
    "G28": "no more valid leases of a key than its limit",
    "G29": "the tasks of a key go in their order, one at a time",
    "G30": "tasks of a key are claimed as often as its rate allows, and not while it rests",
    "G32": "one live task a unique key, with the last acknowledged payload",
    "G33": "a debounce moves the start as it says, to its latest and no further",
    "G34": "a list by tag has exactly the tasks that have it",
    "G35": "a watcher misses no event, whichever node it goes on at",
    "G36": "a cancel with a grace is heard, and nothing is accepted after the end it brings",
    "G37": "a recorded step is handed to every later delivery, and no other has its name",
    "G38": "a signal is read once or kept, and no wait ends without its cause",
    "G39": "a bulk job acts once on exactly the tasks of its selection that were there before it",
    "G40": "a task's log has each answered line, in order, and no other",
    "G41": "a rejected task is a dead letter at once and once, and stays one until it is requeued",
}


# Promises about durations, which only count on a machine that is fast enough.
TIMELY = ("G9", "G11", "G20", "G22")


class Exit(IntEnum):
    """The exit status of a command."""

    VALID = 0
    VIOLATION = 1
    UNKNOWN = 2
    BROKEN = 3


class Judgement(Struct, frozen=True, kw_only=True):
    """The verdict of a run.

    Attributes:
        verdicts: One per guarantee, in order.
        shortcomings: Demands that the run did not meet.
    """

    exit: Exit
    verdicts: tuple[Verdict, ...]
    shortcomings: tuple[str, ...]


def verdicts(history: History, *, calm_p99_ms: int = CALM_P99_MS) -> dict[str, Verdict]:
    """Judge every guarantee, in order."""
    moments, reads = happened_at_moments(history)
    parts = [
        lost(history),
        invented(history),
        dishonest(history),
        one_task_a_key(history),
        tokens_grow(history),
        held_to_the_end(history),
        _both(one_result(history), moments),
        terminal_is_terminal(history),
        abandoned_comes_back(history),
        exact(history),
        _both(not_before_due(history), due_is_ready(history)),
        first_in_first_out(history),
        higher_first(history),
        kept_up(history),
        reads,
        converge(history),
        writes_again(history),
        told(history),
        _both(answered_in_time(history), unharmed(history, calm_p99_ms=calm_p99_ms)),
        fired_once(history),
        overlap_as_asked(history),
        made_with_results(history),
        started_when_met(history),
        completed_once(history),
        within_its_limit(history),
        in_order_of_arrival(history),
        _both(within_its_rate(history), at_rest(history)),
        one_task_a_unique_key(history),
        debounced(history),
        lists_are_sets(history),
        without_a_gap(history),
        heard_and_ended(history),
        recorded_once(history),
        woken_by_cause(history),
        exactly_the_selection(history),
        lines_are_kept(history),
        dead_at_once(history),
    ]
    found = {verdict.guarantee: verdict for verdict in parts}
    for verdict in _under_faults(history, found):
        found[verdict.guarantee] = verdict
    return {guarantee: found[guarantee] for guarantee in PROMISES}


def judge(history: History, demands: Demands) -> Judgement:
    """Judge a run: a violation outweighs everything; a run that did too little proves nothing."""
    found = verdicts(history, calm_p99_ms=demands.calm_p99_ms)
    if starved(history):
        # On such a machine a slow operation may have waited for CPU time, not for the broker.
        found |= {name: unknown(name, "the machine was too busy") for name in TIMELY}
    missing = shortcomings(history, demands)
    missing += [
        f"{name} could not be judged: {found[name].note or 'nothing to judge'}"
        for name in demands.proves
        if found[name].valid is None
    ]
    if any(verdict.valid is False for verdict in found.values()):
        how = Exit.VIOLATION
    else:
        how = Exit.UNKNOWN if missing else Exit.VALID
    return Judgement(exit=how, verdicts=tuple(found.values()), shortcomings=tuple(missing))


def _both(first: Verdict, second: Verdict) -> Verdict:
    """Combine the verdicts on two halves of one guarantee; one half may have judged nothing."""
    assert first.guarantee == second.guarantee
    violations = (*first.violations, *second.violations)
    note = "; ".join(filter(None, (first.note, second.note)))
    checked = first.checked + second.checked
    return judged(first.guarantee, violations, checked=checked, note=note)


def _under_faults(history: History, found: dict[str, Verdict]) -> list[Verdict]:
    """Judge the guarantees that differ under a certain fault."""
    setup = history.phases.get("setup")
    nodes = len(setup.args.nodes) if setup else 0
    struck = {fault.name for fault in history.faults if fault.applied}
    dark = any(f.name == "power" and nodes and f.applied >= nodes for f in history.faults)
    numbers = (
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        10,
        15,
        17,
        23,
        25,
        26,
        27,
        28,
        29,
        32,
        34,
        35,
        36,
        37,
        38,
        39,
    )
    safety = [found[f"G{n}"] for n in numbers]
    return [
        combined("G16", [found[name] for name in ("G1", "G4", "G8")], note="G1, G4, G8")
        if dark
        else unknown("G16", "no power cut of all nodes"),
        combined("G18", _judged(safety), note="safety under storage faults")
        if struck & {"corrupt", "disk-error"}
        else unknown("G18", "no fault of storage"),
        combined(
            "G19",
            [*_judged(safety), agree_who_they_are(history)],
            note="safety under changes of membership",
        )
        if struck & {"membership", "wipe"}
        else unknown("G19", "no change of membership"),
    ]


def _judged(parts: list[Verdict]) -> list[Verdict]:
    return [part for part in parts if part.valid is not None]
