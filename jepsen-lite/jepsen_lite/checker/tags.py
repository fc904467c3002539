"""Tags: a list by tag has exactly the tasks that have it (G34)."""

from __future__ import annotations

from collections import Counter

from jepsen_lite.checker.uniques import contents, listed
from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.history import F
from jepsen_lite.operations import History
from jepsen_lite.uniques import TAGS


def lists_are_sets(history: History) -> Verdict:
    """G34: at rest, each list by tag has the tasks whose last payload came with that tag, once."""
    every = listed(history)
    lists = {op.args.tag: op for op in history.by_f[F.TAGGED] if op.ok and op.args.final}
    if every is None or lists.keys() != set(TAGS):
        return unknown("G34", "nobody listed the tasks of unique keys by their tags at the end")
    said = contents(history)
    wanted: dict[str, set[str]] = {tag: set() for tag in TAGS}
    for part in every.out.parts:
        if part.content in said:
            wanted[said[part.content].merging.tag].add(part.task)
    found: list[Violation] = []
    for tag, op in lists.items():
        there = Counter(part.task for part in op.out.parts)
        for task in sorted(there.keys() ^ wanted[tag]):
            text = f"{task} {'is' if task in there else 'is not'} in the list of {tag}, wrongly"
            found.append(Violation(text=text, events=(*op.events, *every.events)))
        for task, number in there.items():
            if number > 1:
                text = f"{task} is {number} times in the list of {tag}"
                found.append(Violation(text=text, events=op.events))
    return judged("G34", found, checked=sum(map(len, wanted.values())))
