"""Isolation: beside a hostile tenant the others' operations succeed, and almost in time (G22)."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen_lite.checker.liveness import WRITES_WITHIN_NS
from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import HOSTILE, Type
from jepsen_lite.operations import MS, History, Op

# 99 of 100 operations may take this many times as long as the bound of the calibration, because the
# attacker shares the processors with the nodes, the clients and the switch.
TIMES_CALM = 4
# Fewer prove nothing about 99 of 100.
OPS_MIN = 100


def unharmed(history: History, *, calm_p99_ms: int) -> Verdict:
    """G22: while only a hostile tenant acts, 99 of 100 operations succeed in time."""
    most_ms = TIMES_CALM * calm_p99_ms
    beside = list(_beside(history, most_ms))
    if len(beside) < OPS_MIN:
        return judged("G22", [], checked=0)
    harmed = [op for op in beside if _failed(op) or op.done_ns > _latest_ns(op, most_ms)]
    note = (
        f"beside a hostile tenant {len(harmed)} of {len(beside)} failed or took over {most_ms} ms"
    )
    found = []
    if 100 * len(harmed) > len(beside):
        events = tuple(i for op in harmed[:4] for i in op.events)
        found.append(Violation(text=note, events=events))
    return judged("G22", found, checked=len(beside), note=note)


def _beside(history: History, most_ms: int) -> Iterator[Op]:
    """Yield the operations that met a hostile tenant and no other fault, nor its aftermath."""
    hostile = [fault for fault in history.faults if fault.name == HOSTILE]
    for op in history.ops:
        since = history.calm_since(op.call_ns, min(op.done_ns, _latest_ns(op, most_ms)))
        if since is None or (since and op.call_ns < since + WRITES_WITHIN_NS):
            continue
        if any(fault.begun_ns <= op.call_ns < fault.ended_ns for fault in hostile):
            yield op


def _latest_ns(op: Op, most_ms: int) -> int:
    return op.call_ns + (op.args.wait_ms + most_ms) * MS


def _failed(op: Op) -> bool:
    # A refusal counts as an answer, unless it says that the node or the tenant has no room.
    return op.type is Type.INFO or op.out.http >= 500 or op.out.http == 429
