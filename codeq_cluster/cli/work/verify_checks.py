"""Verify checks: what must hold of a run's tasks, by what their producers and workers have seen.

Every instant is one of this process's monotonic clock, in seconds. An operation has its effect
between its call and its answer; without an answer, at any time later, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations, pairwise
from typing import TypeAlias

from codeq_cluster.cli.support.checks import Check

# The broker cuts instants to milliseconds, and its clock may run a little faster than this one.
_EARLY_S = 0.05


class Verb(StrEnum):
    """What a worker does with a task that it holds."""

    COMPLETE = "complete"
    FAIL = "fail"
    HEARTBEAT = "heartbeat"
    NACK = "nack"
    ABANDON = "abandon"

    @property
    def ends(self) -> bool:
        """Whether no worker gets the task after it."""
        return self in (Verb.COMPLETE, Verb.FAIL)


@dataclass(slots=True, kw_only=True)
class Act:
    """What a worker did.

    Attributes:
        content: The result, or the error, which no other act has.
        told_s: When its answer came.
        accepted: The broker has said so. Without it, it may have had an effect all the same.
    """

    verb: Verb
    content: str
    called_s: float
    told_s: float = 0.0
    accepted: bool = False


@dataclass(slots=True, kw_only=True)
class Delivery:
    """A task in the hands of a worker.

    Attributes:
        called_s: When the claim was sent.
        lease_s: How long the lease lasts, and by how much a heartbeat extends it.
    """

    token: int
    payload: str
    called_s: float
    told_s: float
    lease_s: float
    acts: list[Act] = field(default_factory=list)

    @property
    def until_s(self) -> float:
        """The instant until which the lease certainly lasts, if the worker keeps it."""
        beats = (each for each in self.acts if each.verb is Verb.HEARTBEAT and each.accepted)
        return max([self.called_s, *(each.called_s for each in beats)]) + self.lease_s


@dataclass(slots=True, kw_only=True)
class Story:
    """All that is known of one task.

    Attributes:
        payload: As it was sent, which is no other's.
        ids: What the answers to its creates and to claims have named, at least one if it exists.
        answers: Creates that were answered.
        status: At the end; empty if the task was not read, or has not ended.
        cancelled: It was cancelled, since it had not ended in time.
        gone: It was read, and is not there.
        content: Its result or error at the end.
    """

    payload: str
    ids: list[str] = field(default_factory=list)
    answers: int = 0
    deliveries: list[Delivery] = field(default_factory=list)
    status: str = ""
    cancelled: bool = False
    gone: bool = False
    content: str = ""

    @property
    def name(self) -> str:
        """Its id, for people."""
        return self.ids[0] if self.ids else self.payload

    @property
    def by_token(self) -> list[Delivery]:
        """Its deliveries in the order of their tokens."""
        return sorted(self.deliveries, key=lambda each: each.token)

    @property
    def acts(self) -> Iterator[Act]:
        """All that was done with it."""
        return (act for each in self.deliveries for act in each.acts)


# How many things were looked at in one story, and what is broken.
_Judged: TypeAlias = tuple[int, list[str]]


def judge(stories: list[Story]) -> list[Check]:
    """Judge all promises."""
    checks = [_lost(stories)]
    for promise, judged in _PROMISES.items():
        found = [judged(story) for story in stories]
        broken = tuple(each for _, faults in found for each in faults)
        checks.append(Check(promise=promise, facts=sum(facts for facts, _ in found), broken=broken))
    return checks


def _lost(stories: list[Story]) -> Check:
    """Judge that no task is lost; with one that was not read, or was cancelled, that is unknown."""
    made = [each for each in stories if each.ids]
    broken = tuple(f"{each.name} is gone" for each in made if each.gone)
    unread = any(each.cancelled or not (each.status or each.gone) for each in made)
    promise = "every acknowledged task is there and has ended"
    return Check(promise=promise, facts=0 if unread else len(made), broken=broken)


def _made_once(story: Story) -> _Judged:
    """Judge a create that was repeated, by its producer or by the client."""
    others = {*story.ids} - {story.name}
    named = ", ".join(sorted(others))
    broken = [f"{story.name}: its idempotency key has also made {named}"] if others else []
    return int(story.answers > 1), broken


def _as_sent(story: Story) -> _Judged:
    broken = [
        f"{story.name} was sent as {story.payload} and came as {each.payload}"
        for each in story.deliveries
        if each.payload != story.payload
    ]
    return len(story.deliveries), broken


def _ended_once(story: Story) -> _Judged:
    """Judge that at most one end was accepted, and that it is the one that is kept."""
    ends = [act for act in story.acts if act.verb.ends]
    accepted = {act.content for act in ends if act.accepted}
    known = story.status and not story.cancelled
    broken = []
    if len(accepted) > 1:
        broken.append(f"{story.name} was finished {len(accepted)} times")
    elif accepted and known and story.content not in accepted:
        broken.append(f"{story.name} keeps another end than the accepted one")
    elif known and story.content not in {act.content for act in ends}:
        broken.append(f"{story.name} is {story.status} by nobody here: {story.content}")
    return int(bool(accepted)), broken


def _over_when_ended(story: Story) -> _Judged:
    known_s = [act.told_s for act in story.acts if act.verb.ends and act.accepted]
    goes_on = known_s and any(each.called_s > min(known_s) for each in story.deliveries)
    return int(bool(known_s)), [f"{story.name} was handed out after its end"] if goes_on else []


def _leases_last(story: Story) -> _Judged:
    """Judge that nobody gets a task while another worker holds it and keeps it."""
    broken, facts = [], 0
    for held, other in pairwise(story.by_token):
        facts += 1
        given_up = any(
            act.verb is not Verb.HEARTBEAT and act.called_s < other.told_s for act in held.acts
        )
        early_s = held.until_s - other.told_s
        if early_s > _EARLY_S and not given_up:
            broken.append(f"{story.name} was handed out again {early_s:.2f} s early")
    return facts, broken


def _tokens_grow(story: Story) -> _Judged:
    broken, facts = [], 0
    for one, other in combinations(story.deliveries, 2):
        facts += 1
        first, later = (one, other) if one.told_s < other.called_s else (other, one)
        if first.token == later.token or (
            first.told_s < later.called_s and first.token > later.token
        ):
            broken.append(f"{story.name}: token {first.token}, then {later.token}")
    return facts, broken


def _late_refused(story: Story) -> _Judged:
    """Judge what was sent by a worker after another one had the task."""
    broken, facts = [], 0
    for held in story.deliveries:
        newer_s = [each.told_s for each in story.deliveries if each.token > held.token]
        late = [act for act in held.acts if newer_s and act.called_s > min(newer_s)]
        facts += len(late)
        broken += [f"{story.name}: a late {act.verb} was taken" for act in late if act.accepted]
    return facts, broken


_PROMISES: Mapping[str, Callable[[Story], _Judged]] = {
    "one idempotency key makes one task": _made_once,
    "each payload comes as it was sent": _as_sent,
    "no task is finished twice, and its end is the accepted one": _ended_once,
    "a task that has ended is not handed out": _over_when_ended,
    "no lease ends early": _leases_last,
    "each delivery has a greater token than the one before": _tokens_grow,
    "a worker that has lost its lease is refused": _late_refused,
}
