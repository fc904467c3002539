"""Membership: in the end every node has the same members, as the operator asked (G19)."""

from __future__ import annotations

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import MEMBERS
from jepsen_lite.operations import History


def agree_who_they_are(history: History) -> Verdict:
    """G19, the half judged here: each change completed, and all nodes agree on the members."""
    found = []
    checked = 0
    if "unsettled" in history.phases:
        unsettled = history.phases["unsettled"]
        text = f"a change did not end in calm: {unsettled.args.detail}"
        found.append(Violation(text=text, events=(unsettled.i,)))
    asked = history.phases.get(MEMBERS)
    expected = tuple(sorted(asked.args.nodes)) if asked else ()
    for event in history.statuses:
        for group in event.out.groups if event.p == MEMBERS and asked else ():
            checked += 1
            if group.changing or group.learners or group.voters != expected:
                text = f"{event.node} has {_said(group.voters)} vote in shard {group.shard}"
                if group.learners:
                    text += f" and {_said(group.learners)} learn"
                text += f", and {_said(expected)} should"
                found.append(Violation(text=text, events=(event.i,)))
    note = "" if checked else "no node said who its members are"
    return judged("G19", found, checked=checked, note=note)


def _said(names: tuple[str, ...]) -> str:
    return " ".join(names) or "nobody"
