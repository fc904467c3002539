"""Replicas: equal states at equal indexes, one leader per term, no step back (G17)."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.operations import History


def converge(history: History) -> Verdict:
    """G17: no two states at one index, no two leaders in one term, one state at the end."""
    found = []
    checked = 0
    # Nodes report a hash over entries, an autopsy one over rows.
    digests: dict[tuple[str, int, int], tuple[str, int, str]] = {}
    leaders: dict[tuple[int, int], tuple[str, int]] = {}
    for event in history.statuses:
        for group in event.out.groups:
            checked += 1
            spot = (event.p, group.shard, group.applied)
            digest, seen, node = digests.setdefault(spot, (group.digest, event.i, event.node))
            if digest != group.digest:
                text = f"shard {spot[1]} at {spot[2]}: {node} and {event.node} differ ({event.p})"
                found.append(Violation(text=text, events=(seen, event.i)))
            if group.leads:
                leadership = (group.shard, group.term)
                leader, seen = leaders.setdefault(leadership, (event.node, event.i))
                if leader != event.node:
                    text = f"shard {group.shard}, term {group.term}: {leader} and {event.node} lead"
                    found.append(Violation(text=text, events=(seen, event.i)))
    found.extend(_steps_back(history))
    final = history.phases.get("final")
    if final is not None and "converged" not in history.phases:
        text = "the replicas were not equal when everything had come to rest"
        found.append(Violation(text=text, events=(final.i,)))
    return judged("G17", found, checked=checked if final is not None else 0)


# After these faults a node may have lost what it had not synced, or may have an empty disk.
_FORGETTING = frozenset(
    {"power", "corrupt", "wipe", "membership", "disk-error", "disk-full", "disk-slow"}
)


def _steps_back(history: History) -> Iterator[Violation]:
    """Yield each return of a node's state to an earlier entry although its disk was kept."""
    excused = {
        node for fault in history.faults if fault.name in _FORGETTING for node in fault.nodes
    }
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    for event in history.statuses:
        if event.p != "observer" or event.node in excused:
            continue
        for group in event.out.groups:
            applied, seen = newest.get((event.node, group.shard), (0, event.i))
            if group.applied < applied:
                text = f"{event.node} went back from {applied} to {group.applied} in {group.shard}"
                yield Violation(text=text, events=(seen, event.i))
            newest[event.node, group.shard] = (group.applied, event.i)
