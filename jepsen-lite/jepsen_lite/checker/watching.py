"""Watching: a watcher of events misses nothing, whichever node it goes on at (G35)."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.history import ENDS, F, Told
from jepsen_lite.operations import History, Op


def without_a_gap(history: History) -> Verdict:
    """G35: over all nodes, a watcher is told each shard's events in order, and none is missing.

    What one watcher was told after the cursor of another, the other must be told too; and the end
    of each task that was created and ended meanwhile.
    """
    ways = list(_ways(history))
    whole = [way for way in ways if way.ended]
    if not whole:
        return unknown("G35", "no watcher has come to the end")
    found: list[Violation] = []
    checked = 0
    for way in ways:
        found += way.backwards()
    for way in whole:
        told = {each for _, each in way.told}
        ended = {each.task for each in told if each.kind in ENDS}
        for task in history.tasks.values():
            final = task.final
            if final is None or final.out.status not in ("COMPLETED", "FAILED"):
                continue
            if task.creates and task.created_call_ns > way.begun.ret_ns:
                checked += 1
                if task.id not in ended:
                    text = f"watcher {way.begun.args.name} was not told of the end of {task.id}"
                    found.append(Violation(text=text, events=final.events, task=task.id))
        for other in ways:
            late = {each for op, each in other.told if _follows(way, each)}
            checked += len(late)
            for each in sorted(late - told, key=lambda each: (each.shard, each.index)):
                text = (
                    f"watcher {way.begun.args.name} was not told that {each.task} was {each.kind}"
                )
                text += f", entry {each.index} of shard {each.shard}"
                found.append(Violation(text=text, events=way.begun.events, task=each.task))
    return judged("G35", found, checked=checked)


class _Way:
    """The pages of one watcher from a first cursor to its last one.

    Attributes:
        begun: The request that had no cursor.
        told: What was told, with the page.
        ended: It has come to the end of all logs.
        first: The lowest index that it was told of each shard.
    """

    def __init__(self, begun: Op) -> None:
        self.begun = begun
        self.told: list[tuple[Op, Told]] = []
        self.ended = False
        self.first: dict[int, int] = {}

    def add(self, op: Op) -> None:
        """Add a page."""
        self.ended |= op.args.final
        for each in op.out.told:
            self.told.append((op, each))
            self.first[each.shard] = min(each.index, self.first.get(each.shard, each.index))

    def backwards(self) -> Iterator[Violation]:
        """Yield events that come after a later one of their shard, or once more."""
        seen: dict[int, Told] = {}
        for op, each in self.told:
            before = seen.get(each.shard)
            if before is not None and (
                before.index > each.index or (before.index == each.index and before == each)
            ):
                text = f"watcher {self.begun.args.name} was told of entry {each.index} of shard "
                text += f"{each.shard} after {before.index}"
                yield Violation(text=text, events=op.events, task=each.task)
            seen[each.shard] = each


def _follows(way: _Way, each: Told) -> bool:
    """Return whether a watcher was certainly to be told: it was told of an earlier entry."""
    first = way.first.get(each.shard)
    return first is not None and each.index >= first


def _ways(history: History) -> Iterator[_Way]:
    """Yield each way of each watcher: a page goes on after the cursor of the one before."""
    open_ways: dict[str, _Way] = {}
    for op in sorted(history.by_f[F.WATCH], key=lambda op: op.call_ns):
        if not op.ok:
            continue
        if not op.args.after:
            open_ways[op.args.name] = _Way(op)
            yield open_ways[op.args.name]
        else:
            open_ways[op.args.name].add(op)
