"""Graphs: no task starts before what it waits for, and in calm each one starts or ends (G26)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.graphs import NODE_COMMAND, ref_of
from jepsen_lite.history import F, Follow, Handed, Need, Part
from jepsen_lite.operations import History, Op

_LOST = "DEPENDENCY_"
_UNKNOWN = "DEPENDENCY_UNKNOWN"
_WAITS, _MET, _IMPOSSIBLE = "waits", "met", "impossible"


def started_when_met(history: History) -> Verdict:
    """G26: what was handed to each task is what others have returned, and at rest none is stuck.

    A task that waits at rest waits for a dead letter, or for another one that waits; one that has
    ended without a start could never start.
    """
    lists = [op for op in history.by_f[F.PARTS] if op.ok and op.args.final]
    [*_, listed] = [None, *(op for op in lists if op.args.command == NODE_COMMAND)]
    if listed is None:
        return unknown("G26", "nobody listed the tasks of graphs at the end")
    judge = _Judge(history, listed)
    return judged("G26", [*judge.made(), *judge.starts(), *judge.rest()], checked=judge.checked)


class _Node(Struct, frozen=True):
    """A task as it was asked for.

    Attributes:
        ids: Of the tasks of its request that are known, by their names there.
    """

    asked: Follow
    ids: dict[str, str]

    def parent(self, need: Need) -> str:
        """Return the id of a task that it waits for; empty if nobody knows it."""
        return self.ids.get(need.parent, need.parent if "-" in need.parent else "")


class _Judge:
    """Looks at the tasks of all graphs.

    Attributes:
        checked: The tasks, and what was handed to them.
    """

    def __init__(self, history: History, listed: Op) -> None:
        self.checked = 0
        self._history = history
        self._listed = listed
        self._parts = {part.task: part for part in listed.out.parts}
        self._by_content: dict[str, list[Part]] = defaultdict(list)
        for part in listed.out.parts:
            self._by_content[part.content].append(part)
        self._asks = [
            op for op in (*history.by_f[F.MAKE_GRAPH], *history.by_f[F.DEPEND]) if op.possible
        ]
        self._revived = _touched(history, F.REVIVE)
        self._buried = _touched(history, F.BURY)
        self._ends: dict[str, list[Op]] = defaultdict(list)
        for op in history.by_f[F.END]:
            if op.possible:
                self._ends[op.args.task].append(op)
        self._nodes = {each.asked.content: each for each in self._asked()}

    def made(self) -> Iterator[Violation]:
        """Yield which tasks are there and should not be, or the other way round."""
        for content, parts in self._by_content.items():
            if len(parts) > 1 or content not in self._nodes:
                what = f"{len(parts)} times" if len(parts) > 1 else "which nobody asked for"
                yield self._wrong(parts[0].task, f"has the payload {content}, {what}")
        for op in self._asks:
            for made in op.out.next if op.ok else ():
                if made.task not in self._parts and made.task not in self._buried:
                    yield self._wrong(made.task, "was acknowledged, and is not there", op)

    def starts(self) -> Iterator[Violation]:
        """Yield the deliveries that came too early, or with other results than there are."""
        for op in self._history.by_f[F.START]:
            node = self._nodes.get(op.out.content) if op.ok else None
            handed = {each.name: each for each in op.out.inputs}
            for need in node.asked.needs if node is not None else ():
                self.checked += 1
                assert node is not None
                text = self._untrue(op, need, node.parent(need), handed.get(need.parent))
                if text:
                    yield self._wrong(op.out.task, f"was started, and {need.parent} {text}", op)

    def rest(self) -> Iterator[Violation]:
        """Yield the tasks that are not as they must be at rest."""
        for part in self._parts.values():
            node = self._nodes.get(part.content)
            self.checked += 1
            for text in self._at_rest(part, node) if node is not None else ():
                yield self._wrong(part.task, text)

    def _asked(self) -> Iterator[_Node]:
        for op in self._asks:
            ids = {}
            for place, asked in enumerate(op.args.next):
                for part in self._by_content[asked.content]:
                    ids[ref_of(place)] = part.task
            if op.ok and len(op.out.next) == len(op.args.next):
                ids |= {ref_of(place): made.task for place, made in enumerate(op.out.next)}
            yield from (_Node(each, ids) for each in op.args.next)

    def _untrue(self, start: Op, need: Need, parent: str, handed: Handed | None) -> str:
        """Return what is wrong with what was handed over, or nothing."""
        if handed is None:
            return "had handed nothing to it"
        if handed.status != "COMPLETED":
            part = self._parts.get(parent)
            completed = part is not None and part.status == "COMPLETED"
            if need.run_if == "succeeded":
                return "must succeed, and was said to have failed"
            if completed and parent not in self._revived:
                return "has completed, and was said to have failed"
            return ""
        if need.run_if == "failed":
            return "must fail, and was said to have completed"
        ends = [op for op in self._ends[parent] if op.args.status == "COMPLETED"]
        # The answer to the one that took effect may be lost, and that to a repetition come later.
        sent = {op.args.content for op in ends if op.call_ns < start.ret_ns}
        kept = {op.args.content for op in ends if op.ok} or sent
        if parent and handed.content not in sent & kept:
            return f"had not returned {handed.content}"
        return ""

    def _at_rest(self, part: Part, node: _Node) -> Iterator[str]:
        needs = {need.parent: need for need in node.asked.needs}
        says = {
            name: self._says(need, node.parent(need))
            for name, need in needs.items()
            if node.parent(need)
        }
        # An operator's new life of either task may have changed it after the other was told.
        steady = {
            name: said
            for name, said in says.items()
            if not {part.task, node.parent(needs[name])} & self._revived
        }
        if not part.ended:
            if _IMPOSSIBLE in steady.values():
                yield "waits in vain"
            elif _WAITS not in says.values():
                yield "has not ended, and waits for nothing"
            return
        lost = part.error.partition(": ")[2] if part.error.startswith(_LOST) else ""
        if lost and lost not in needs:
            yield f"ended for {lost}, which it does not wait for"
        for name, said in steady.items():
            if name == lost:
                # It may have been asked for, and found gone, however it had ended before.
                gone = part.error.startswith(_UNKNOWN) and node.parent(needs[name]) in self._buried
                yield from _lost(part, needs[name], _IMPOSSIBLE if gone else said)
            elif part.status == "COMPLETED" and said != _MET:
                yield f"has completed, and {name} {said}"

    def _says(self, need: Need, parent: str) -> str:
        """Return what is to be said of a dependency at rest."""
        part = self._parts.get(parent)
        if part is not None and not part.ended:
            return _WAITS
        if need.run_if == "ended":
            return _MET
        if part is not None and part.status == "COMPLETED":
            return _MET if need.run_if == "succeeded" else _IMPOSSIBLE
        if need.run_if == "failed":
            return _MET
        waits = part is not None and part.dead and need.on_dead == "hold"
        return _WAITS if waits else _IMPOSSIBLE

    def _wrong(self, task: str, text: str, op: Op | None = None) -> Violation:
        shown = op.events if op is not None else ()
        return Violation(text=f"{task} {text}", events=(*shown, *self._listed.events), task=task)


def _lost(part: Part, need: Need, says: str) -> Iterator[str]:
    """Yield what is wrong with a task that has ended because another one could not end as asked."""
    if says != _IMPOSSIBLE:
        yield f"ended for {need.parent}, which {says}"
    if part.dead != (need.otherwise == "dead-letter"):
        yield f"ended for {need.parent}, and is {'a' if part.dead else 'no'} dead letter"
    if part.attempts:
        yield f"ended for {need.parent}, and was started"


def _touched(history: History, f: F) -> set[str]:
    return {op.args.task for op in history.by_f[f] if op.possible}
