"""Uniques: one task holds a unique key, with what was said last (G32), and debounces hold (G33)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import inf

from msgspec import Struct

from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.history import F, Merging, Part
from jepsen_lite.operations import MS, History, Op
from jepsen_lite.uniques import UNIQUE_COMMAND

_CHANGES = frozenset({"created", "queued", "replaced"})


class _Said(Struct, kw_only=True):
    """What the creates of one content can have done, and when, in nanoseconds of the run.

    Attributes:
        begun: No effect was earlier.
        latest: No effect was later; infinite if an answer is missing.
        acked: When the first success was known; infinite for never.
        how, task: Of a success.
    """

    merging: Merging
    begun: float
    latest: float = 0.0
    acked: float = inf
    how: str = ""
    task: str = ""
    ops: list[Op]
    possible: bool = False


def one_task_a_unique_key(history: History) -> Verdict:
    """G32: claims hand out what was said last, one task of a key at a time; nothing is lost."""
    last = listed(history)
    if last is None:
        return unknown("G32", "nobody listed the tasks of unique keys at the end")
    judge = _Judge(history, last)
    found = [*judge.handed_out(), *judge.at_once(), *judge.requeued()]
    found += [*judge.in_order(), *judge.at_rest(), *judge.overlapping()]
    return judged("G32", found, checked=judge.checked)


def debounced(history: History) -> Verdict:
    """G33: each create that is answered has moved the start as it says, and no claim is sooner."""
    if listed(history) is None:
        return unknown("G33", "nobody listed the tasks of unique keys at the end")
    said = contents(history)
    first = {each.task: each for each in said.values() if each.how in ("created", "queued")}
    found: list[Violation] = []
    checked = 0
    for each in said.values():
        for op in each.ops:
            if op.ok and each.merging.debounce_ms and not op.out.replayed:
                checked += 1
                found += _start(op)
    for take in _takes(history):
        if take.out.attempt != 1 or take.out.task not in first:
            continue
        begin = first[take.out.task]
        for each in said.values():
            waits = each.merging.debounce_ms * MS
            if each.task != take.out.task or not waits or each.acked > take.call_ns:
                continue
            checked += 1
            least = min(each.begun + waits, begin.begun + each.merging.max_wait_ms * MS)
            if take.ret_ns + history.clock_ns < least and each.how in _CHANGES:
                early = (least - take.ret_ns) / MS
                text = f"{take.out.task} was claimed {early:.0f} ms before its debounce was over"
                found.append(Violation(text=text, events=(*take.events, *each.ops[0].events)))
    return judged("G33", found, checked=checked)


def _start(op: Op) -> Iterator[Violation]:
    """Yield what is wrong with the start that an answer shows; both clocks are of its shard."""
    made, merging = op.out.made, op.args.merging
    assert made is not None
    assert merging is not None
    if made.how not in ("created", "replaced") or op.out.attempt or op.out.location == "HELD_SET":
        return  # One that is next has no start before it has its key.
    latest = made.created_ms + merging.max_wait_ms
    due = min(made.changed_ms + merging.debounce_ms, latest)
    shown = made.start_ms or made.changed_ms
    may_be_over = op.done_ns - op.call_ns >= merging.debounce_ms * MS
    if not made.start_ms and may_be_over:
        # A node that lost the leader's answer asks again, and its start has come meanwhile.
        due = min(made.created_ms + merging.debounce_ms, latest)
    if shown != max(due, made.changed_ms):
        text = f"{op.out.task} starts at {shown}, and its debounce says {due}"
        yield Violation(text=text, events=op.events)


class _Judge:
    """Looks at the tasks of all keys.

    Attributes:
        checked: The claims and tasks that were judged.
    """

    def __init__(self, history: History, listed: Op) -> None:
        self.checked = 0
        self._listed = listed
        self._parts = {each.task: each for each in listed.out.parts}
        self._said = contents(history)
        self._takes = _takes(history)
        self._revives = [op for op in history.by_f[F.REVIVE] if op.ok]
        self._rejects = _possible(history, F.REJECT)
        self._ends = _possible(history, F.FINISH, F.REJECT)
        self._by_key: dict[str, list[Op]] = defaultdict(list)  # Claims, in the order of answers.
        for take in sorted(self._takes, key=lambda op: op.ret_ns):
            if take.out.task in self._parts:
                self._by_key[self._parts[take.out.task].group].append(take)
        self._by_task: dict[str, list[_Said]] = defaultdict(list)
        for each in self._said.values():
            if each.how in _CHANGES:
                self._by_task[each.task].append(each)

    def handed_out(self) -> Iterator[Violation]:
        """Yield claims of what nobody said, or of what was replaced before."""
        for take in self._takes:
            self.checked += 1
            said = self._said.get(take.out.content)
            if said is None or not said.possible:
                text = f"{take.out.task} has {take.out.content}, which nobody may have said"
                yield Violation(text=text, events=take.events)
                continue
            for later in self._by_task[take.out.task]:
                if said.latest < later.begun and later.acked < take.call_ns:
                    text = f"{take.out.task} was claimed with what had been replaced before"
                    yield Violation(text=text, events=(*take.events, *later.ops[-1].events))
                    break

    def at_once(self) -> Iterator[Violation]:
        """Yield claims of one task of a key while another one was certainly in progress."""
        for take in self._takes:
            for begun in self._held(take):
                text = f"{take.out.task} was claimed while {begun.out.task} had the same key"
                yield Violation(text=text, events=(*take.events, *begun.events))

    def in_order(self) -> Iterator[Violation]:
        """Yield claims of what was said before that which a claim of the key had handed out.

        The requeue of a dead letter brings an older payload back.
        """
        for takes in self._by_key.values():
            for take in takes:
                said = self._said.get(take.out.content)
                if said is None or take.out.task in self._rejects:
                    continue
                for begun in takes:
                    if begun.ret_ns > take.call_ns:
                        break
                    later = self._said.get(begun.out.content)
                    if later is not None and said.latest < later.begun:
                        text = f"{take.out.task} was claimed with what was said before the last"
                        yield Violation(text=text, events=(*take.events, *begun.events))
                        break

    def requeued(self) -> Iterator[Violation]:
        """Yield requeues of a dead letter whose key another task certainly had."""
        for op in self._revives:
            self.checked += op.args.task in self._parts
            for begun in self._held(op):
                text = f"{op.args.task} was requeued while {begun.out.task} had the same key"
                yield Violation(text=text, events=(*op.events, *begun.events))

    def _held(self, op: Op) -> Iterator[Op]:
        """Yield the last claim of each other task that had the key of an operation's all the time.

        A dead letter lets go of its key, so a claim says nothing of a task that may have been
        rejected since.
        """
        task = op.args.task or op.out.task
        part = self._parts.get(task)
        last: dict[str, Op] = {}
        for begun in self._by_key[part.group] if part is not None else ():
            if begun.ret_ns > op.call_ns:
                break
            last[begun.out.task] = begun
        for other, begun in last.items():
            if other != task and not self._may_have_ended(begun, before_ns=op.ret_ns):
                yield begun

    def _may_have_ended(self, begun: Op, *, before_ns: float) -> bool:
        """Return whether a delivery, or a later one of its task, may have ended before that."""
        return any(
            end.call_ns < before_ns and end.args.token >= begun.out.token
            for end in self._ends[begun.out.task]
        )

    def _may_be_dead(self, task: str) -> bool:
        """Return whether a reject of a task may have come after its last requeue."""
        requeued = max((op.call_ns for op in self._revives if op.args.task == task), default=0.0)
        return any((op.ret_ns if op.ok else inf) > requeued for op in self._rejects.get(task, ()))

    def at_rest(self) -> Iterator[Violation]:
        """Yield tasks that are there twice or not at all, or without what was said last."""
        contents = Counter(each.content for each in self._parts.values())
        for content, number in contents.items():
            if number > 1:
                yield self._wrong(f"{content} is the payload of {number} tasks")
        for part in self._parts.values():
            self.checked += 1
            said = self._said.get(part.content)
            if said is None or not said.possible:
                yield self._wrong(f"{part.task} has {part.content}, which nobody may have said")
            if not part.ended or (part.dead and not self._may_be_dead(part.task)):
                yield self._wrong(f"{part.task} has not completed")
        for said in self._said.values():
            if said.how not in _CHANGES:
                continue
            last = self._parts.get(said.task)
            if last is None:
                yield self._wrong(f"{said.task} was acknowledged, and is not there", said)
                continue
            final = self._said.get(last.content)
            if final is not None and final is not said and final.latest < said.begun:
                yield self._wrong(f"{said.task} has lost what was acknowledged last", said)

    def overlapping(self) -> Iterator[Violation]:
        """Yield keys that more tasks had at once than may, by the clock of their shard.

        A list does not say when a dead letter let go of its key, and got it again.
        """
        by_key: dict[str, list[Part]] = defaultdict(list)
        for part in self._parts.values():
            if part.task not in self._rejects:
                by_key[part.group].append(part)
        on = {each.merging.key: each.merging.on for each in self._said.values()}
        for key, parts in by_key.items():
            most = 2 if on.get(key) == "keepLast" else 1
            # An end at the instant of a create is before it: it has let go of the key.
            times = sorted(
                [(each.created_ms, 1) for each in parts] + [(each.changed_ms, -1) for each in parts]
            )
            live = 0
            for at_ms, change in times:
                live += change
                if live > most:
                    yield self._wrong(f"{live} tasks had the unique key {key} at {at_ms}")
                    break

    def _wrong(self, text: str, said: _Said | None = None) -> Violation:
        events = said.ops[-1].events if said is not None else ()
        return Violation(text=text, events=(*events, *self._listed.events))


def listed(history: History) -> Op | None:
    """Return the list of all tasks of unique keys at rest, or None."""
    for op in history.by_f[F.PARTS]:
        if op.ok and op.args.final and op.args.command == UNIQUE_COMMAND:
            return op
    return None


def _possible(history: History, *kinds: F) -> dict[str, list[Op]]:
    """Return the operations of these kinds that may have taken effect, by task."""
    found: dict[str, list[Op]] = defaultdict(list)
    for f in kinds:
        for op in history.by_f[f]:
            if op.possible:
                found[op.args.task].append(op)
    return found


def _takes(history: History) -> list[Op]:
    return [op for op in history.by_f[F.TAKE] if op.ok and op.out.task]


def contents(history: History) -> dict[str, _Said]:
    """Return what was said, by content."""
    said: dict[str, _Said] = {}
    for op in history.by_f[F.MERGE]:
        assert op.args.merging is not None
        each = said.setdefault(
            op.args.content, _Said(merging=op.args.merging, begun=op.call_ns, ops=[])
        )
        each.ops.append(op)
        if not op.possible:
            continue
        each.possible = True
        each.begun = min(each.begun, op.call_ns)
        each.latest = max(each.latest, op.ret_ns if op.ok else inf)
        if op.ok and op.out.made is not None and op.ret_ns < each.acked:
            each.acked, each.how, each.task = op.ret_ns, op.out.made.how, op.out.task
    return said
