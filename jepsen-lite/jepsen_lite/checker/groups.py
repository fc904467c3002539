"""Groups: one completion task a group, after the last member, with true counts (G27)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.groups import MEMBER_COMMAND, THEN_COMMAND
from jepsen_lite.history import F, Part, Tally
from jepsen_lite.operations import MS, TERMINAL, History, Op


def completed_once(history: History) -> Verdict:
    """G27: what groups say at rest agrees with the list of all their tasks.

    Each member that was asked for is there once, and was counted as it ended. A sealed group whose
    members have all ended has ended, and has one completion task: it is not older than the last
    end, and has the group's counts.
    """
    lists = {op.args.command: op for op in history.by_f[F.PARTS] if op.ok and op.args.final}
    if not {MEMBER_COMMAND, THEN_COMMAND} <= lists.keys():
        return unknown("G27", "nobody listed the members at the end")
    judge = _Judge(history, lists)
    found = [violation for op in judge.finals for violation in judge.of(op)]
    return judged("G27", found, checked=judge.checked)


class _Judge:
    """Looks at one group after the other.

    Attributes:
        finals: The reads of all groups at rest.
        checked: The groups and members that were judged.
    """

    def __init__(self, history: History, lists: dict[str, Op]) -> None:
        self.checked = 0
        self.finals = [op for op in history.by_f[F.GROUP] if op.ok and op.args.final]
        self._members = _by_group(lists[MEMBER_COMMAND])
        self._thens = _by_group(lists[THEN_COMMAND])
        self._events = tuple(event for op in lists.values() for event in op.events)
        self._tolerance_ms = history.clock_ns // MS
        self._asks: dict[str, list[Op]] = defaultdict(list)
        for op in (*history.by_f[F.BEGIN_GROUP], *history.by_f[F.ADD_MEMBERS]):
            self._asks[op.args.group].append(op)

    def of(self, final: Op) -> Iterator[Violation]:
        """Yield what is wrong with a group."""
        tally = final.out.tally
        if tally is None:
            if any(op.ok for op in self._asks[final.args.group]):
                text = f"group {final.args.group} was acknowledged, and is not there"
                yield Violation(text=text, events=final.events)
            return
        members = self._members[final.args.group]
        texts = [*self._membership(final.args.group, members), *_miscounted(tally, members)]
        if tally.status == "SEALED" and all(each.ended for each in members):
            texts.append("is sealed, and all its members have ended")
        if tally.status in TERMINAL:
            texts += self._completion(tally, members, self._thens[final.args.group])
        elif self._thens[final.args.group]:
            texts.append(f"is {tally.status}, and has a completion task")
        self.checked += 1 + len(members)
        for text in texts:
            yield Violation(
                text=f"group {final.args.group} {text}", events=(*final.events, *self._events)
            )

    def _membership(self, name: str, members: list[Part]) -> Iterator[str]:
        """Yield which tasks are there and should not be, or the other way round."""
        there = Counter(each.content for each in members)
        asked: dict[str, list[Op]] = defaultdict(list)
        for op in self._asks[name]:
            for each in op.args.next:
                asked[each.content].append(op)
        for content, count in there.items():
            if count > 1:
                yield f"made {content} {count} times"
            if not any(op.possible for op in asked[content]):
                yield f"has {content}, which nobody asked for"
        for content, ops in asked.items():
            if any(op.ok for op in ops) and not there[content]:
                yield f"lacks {content}, which was acknowledged"

    def _completion(self, tally: Tally, members: list[Part], thens: list[Part]) -> Iterator[str]:
        """Yield what is wrong with the completion task of an ended group."""
        if len(thens) != 1:
            yield f"has ended, and has {len(thens)} completion tasks"
            return
        [then] = thens
        if then.task != tally.then:
            yield f"names {tally.then} as its completion task, and it is {then.task}"
        if then.counts != tally.counts:
            yield f"tells its completion task {then.counts}, and says itself {tally.counts}"
        last_ms = max((each.changed_ms for each in members), default=0)
        if then.created_ms + self._tolerance_ms < last_ms:
            yield f"has a completion task from {last_ms - then.created_ms} ms before the last end"


def _miscounted(tally: Tally, members: list[Part]) -> Iterator[str]:
    states = Counter(_state(each) for each in members)
    recount = (
        len(members),
        *(states[each] for each in ("COMPLETED", "FAILED", "CANCELLED", "DEAD")),
    )
    if recount != tally.counts:
        yield f"says {tally.counts} of its members, and at rest it is {recount}"


def _state(part: Part) -> str:
    if not part.ended:
        return "LIVE"
    if part.dead:
        return "DEAD"
    return "CANCELLED" if part.error == "CANCELLED" else part.status


def _by_group(listed: Op) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = defaultdict(list)
    for each in listed.out.parts:
        found[each.group].append(each)
    return found
