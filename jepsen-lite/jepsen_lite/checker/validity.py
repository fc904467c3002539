"""Validity: whether a run did enough for its verdicts to count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct

from jepsen_lite.history import AUTOPSY, F, Type
from jepsen_lite.operations import MS, NEVER_NS, SECOND, History

# A machine is fast enough if 99 of 100 operations before the first fault take at most this.
CALM_P99_MS = 100
STARVED_P99_MS = 500
CALM_OPS_MIN = 50
OK_SHARE_MIN = 0.2


class Demands(Struct, frozen=True, kw_only=True):
    """The demands on a run.

    Attributes:
        ok: Least number of acknowledged operations, by kind.
        faults: Least number of faults that were seen to be applied, by kind.
        leader_changes: Least number of terms that began after the calibration.
        proves: Guarantees that must be judged.
        fetch_ms: Least time for which some node fetched a snapshot.
        calm_p99_ms: The bound on 99 of 100 operations before the first fault.
    """

    ok: Mapping[str, int]
    faults: Mapping[str, int]
    leader_changes: int = 0
    proves: tuple[str, ...] = ()
    fetch_ms: int = 0
    calm_p99_ms: int = CALM_P99_MS


def shortcomings(history: History, demands: Demands) -> list[str]:
    """Return the demands that a run did not meet, one line each; empty if its verdicts count."""
    return [
        *_phases(history),
        *_calibration(history, calm_p99_ms=demands.calm_p99_ms),
        *_too_few(history, demands),
        *_leaders(history, demands),
    ]


def _phases(history: History) -> Iterator[str]:
    if not history.ops:
        yield "the history is empty"
    # Rows of replicas can only be compared at equal indexes.
    seen: dict[tuple[int, int], set[str]] = {}
    for event in history.statuses:
        for group in event.out.groups if event.p == AUTOPSY else ():
            seen.setdefault((group.shard, group.applied), set()).add(event.node)
    if not any(len(nodes) > 1 for nodes in seen.values()):
        yield "no two replicas were compared row by row"
    for name in ("calibrate", "main", "heal", "drained", "final", "end"):
        if name not in history.phases:
            yield f"the run did not get to '{name}'"


def starved(history: History) -> bool:
    """Return whether the machine was too slow for verdicts about durations.

    The bound is laxer than the default demand, because the promises about durations are in seconds.
    """
    unchanged = Demands(ok={}, faults={})
    return any((*_calibration(history, calm_p99_ms=STARVED_P99_MS), *_leaders(history, unchanged)))


def _calibration(history: History, *, calm_p99_ms: int) -> Iterator[str]:
    begun, ended = history.phases.get("calibrate"), history.phases.get("main")
    if begun is None or ended is None:
        return
    before = [op for op in history.ops if begun.t_ns <= op.call_ns and op.done_ns < ended.t_ns]
    # A claim that waits for work takes long on any machine.
    took = sorted(op.done_ns - op.call_ns for op in before if op.ok and not op.args.wait_ms)
    if len(took) < CALM_OPS_MIN:
        yield f"only {len(took)} operations before the first fault, {CALM_OPS_MIN} are needed"
        return
    p99_ms = took[int(0.99 * len(took))] / MS
    if p99_ms > calm_p99_ms:
        yield (
            f"the machine is too busy: p99 {p99_ms:.0f} ms without a fault,"
            f" {calm_p99_ms} ms is allowed"
        )
    # A refusal counts as an answer; an unknown outcome and an unreachable node do not.
    failed = [op for op in before if op.type is Type.INFO or op.out.http >= 500]
    if failed:
        first = failed[0]
        yield (
            f"{len(failed)} operations failed before the first fault, the first a {first.f}"
            f" at {first.node}: {first.out.http} {first.out.code}"
        )


def _too_few(history: History, demands: Demands) -> Iterator[str]:
    asked = len(history.ops)
    acknowledged = Counter(op.f.value for op in history.ops if op.ok)
    if asked and acknowledged.total() < OK_SHARE_MIN * asked:
        yield f"only {acknowledged.total()} of {asked} operations were acknowledged"
    for f, least in demands.ok.items():
        if acknowledged[f] < least:
            yield f"{acknowledged[f]} acknowledged {f}, {least} are needed"
    fetched_ms = max((fault.took_ms for fault in history.faults), default=0)
    if fetched_ms < demands.fetch_ms:
        yield f"no state was fetched for longer than {fetched_ms} ms, {demands.fetch_ms} are needed"
    struck = Counter(fault.name for fault in history.faults if fault.applied)
    for name, least in demands.faults.items():
        if struck[name] < least:
            yield f"{struck[name]} faults '{name}' were seen to be applied, {least} are needed"


def _leaders(history: History, demands: Demands) -> Iterator[str]:
    begun = history.phases.get("main")
    if begun is None:
        return
    before = _terms(history, 0, begun.t_ns)
    for shard, terms in before.items():
        if len(terms) > 1:
            yield f"shard {shard} changed its leader before the first fault"
    after = _terms(history, begun.t_ns, NEVER_NS)
    changes = sum(len(terms - before.get(shard, set())) for shard, terms in after.items())
    if changes < demands.leader_changes:
        yield f"{changes} changes of leaders were seen, {demands.leader_changes} are needed"


def _terms(history: History, begun_ns: int, ended_ns: int) -> dict[int, set[int]]:
    """Return the terms in which each shard was seen to have a leader."""
    found: dict[int, set[int]] = {}
    for event in history.statuses:
        for group in event.out.groups if begun_ns <= event.t_ns < ended_ns else ():
            if group.leads:
                found.setdefault(group.shard, set()).add(group.term)
    return found


def duration_s(history: History) -> float:
    """Return how long the faults and the load lasted."""
    begun, ended = history.phases.get("main"), history.phases.get("heal")
    return (ended.t_ns - begun.t_ns) / SECOND if begun and ended else 0.0


def counts(history: History) -> dict[str, dict[str, int]]:
    """Return the number of operations by kind and outcome, and of applied faults."""
    found: dict[str, dict[str, int]] = {}
    for op in history.ops:
        found.setdefault(op.f.value, {"ok": 0, "fail": 0, "info": 0})[op.type.value] += 1
    found["faults"] = dict(Counter(fault.name for fault in history.faults if fault.applied))
    found["happenings"] = {
        F.STATUS.value: len(history.statuses),
        F.DELIVERY.value: len(history.deliveries),
    }
    return found
