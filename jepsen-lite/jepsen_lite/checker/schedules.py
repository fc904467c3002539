"""Schedules: each instant makes one run, or the schedule says why not (G23, G24).

The instants are found minute by minute, or second by second, by what a clock on a wall shows: not
by the broker's calendar.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import Counts, F, Plan, Run
from jepsen_lite.operations import MS, NEVER_NS, SECOND, History, Op

# The broker misses an instant that is a minute late; so long nobody may have fired it.
LATE_NS = 50 * SECOND
# Once all faults have ended: an election, and a clock that is looked at again.
BEHIND_S_MAX = 8.0
_ONE_AT_A_TIME = ("skip", "queueOne", "queue", "cancel")


def fired_once(history: History) -> Verdict:
    """G23: each instant between the first and the last that are decided has one run, if any."""
    judge = _Judge(history)
    found = [violation for name in judge.plans for violation in judge.instants(name)]
    return judged("G23", found, checked=judge.checked, note=judge.note)


def overlap_as_asked(history: History) -> Verdict:
    """G24: runs overlap only if asked for, and the counts of those that did not fire are true."""
    judge = _Judge(history)
    found = [violation for name in judge.plans for violation in judge.overlaps(name)]
    return judged("G24", found, checked=judge.checked, note=judge.note)


class _Judge:
    """Looks at one schedule after the other.

    Attributes:
        plans: By the names of schedules; their calendars never change.
        checked: The instants that were judged.
    """

    def __init__(self, history: History) -> None:
        self.checked = 0
        self.note = ""
        self.plans: dict[str, Plan] = {}
        self._puts: dict[str, list[Op]] = defaultdict(list)
        self._runs: dict[str, list[Run]] = defaultdict(list)
        self._may_be_late = _may_be_late(history)
        self._filled = _last(history, F.BACKFILL)
        self._finals = {
            name: op for name, op in _last(history, F.SCHEDULE).items() if op.args.final
        }
        self._paused = _last(history, F.PAUSE_SCHEDULE)
        self._wall_ns = _wall_ns(history)
        self._census = _last(history, F.RUNS).get("")
        if self._census is None:
            self.note = "nobody listed the runs at the end"
            return
        for op in history.by_f[F.PUT_SCHEDULE]:
            if op.possible and op.args.plan is not None:
                self.plans[op.args.schedule] = op.args.plan
                self._puts[op.args.schedule].append(op)
        for run in sorted(self._census.out.runs, key=lambda run: (run.at_ms, run.created_ms)):
            self._runs[run.schedule].append(run)

    def instants(self, name: str) -> Iterator[Violation]:
        """Yield what is wrong with the runs of a schedule's instants."""
        runs = self._runs[name]
        for one, other in pairwise(runs):
            if one.at_ms == other.at_ms:
                yield self._violation(name, f"{one.at_ms} made {one.task} and {other.task}")
        span = self._span(name)
        if span is None:
            return
        since_ms, until_ms = span
        yield from self._filling(name, {run.at_ms for run in runs if run.at_ms < since_ms})
        behind_s = self._behind_s(name, until_ms)
        if behind_s > BEHIND_S_MAX:
            yield self._violation(name, f"was {behind_s:.0f} s behind when it was paused, in calm")
        wanted = instants(self.plans[name], since_ms, until_ms)
        at_rest = self._counts(name)
        fired = {run.at_ms for run in runs if run.at_ms >= since_ms}
        self.checked += len(wanted)
        for at_ms in sorted(fired - set(wanted)):
            yield self._violation(name, f"{at_ms} made a run and is no instant")
        if at_rest.made != len(fired):
            yield self._violation(name, f"says that it made {at_rest.made}, and made {len(fired)}")
        said = at_rest.made + at_rest.missed + at_rest.skipped
        if said != len(wanted):
            yield self._violation(
                name,
                f"says what became of {said} instants from {since_ms} to {until_ms}, of which "
                f"there are {len(wanted)}",
            )

    def _filling(self, name: str, made: set[int]) -> Iterator[Violation]:
        """Yield what is wrong with the runs of a past."""
        past: set[int] = set()
        if name in self._filled:
            args = self._filled[name].args
            past = set(instants(self.plans[name], args.from_ms, args.to_ms + 1))
        self.checked += len(past)
        for at_ms in sorted(past ^ made):
            what = "has no run" if at_ms in past else "is no instant"
            yield self._violation(name, f"{at_ms} {what} of the past")

    def _behind_s(self, name: str, until_ms: int) -> float:
        """Return how much was not decided at the end of the calm, by the clock of the harness."""
        plan = self.plans[name]
        if (
            self._wall_ns is None
            or name not in self._paused
            or not (plan.every or len(plan.cron.split()) == 6)
        ):
            return 0.0
        paused_ms = (self._wall_ns + self._paused[name].call_ns) / MS
        return (paused_ms - until_ms) / 1000

    def overlaps(self, name: str) -> Iterator[Violation]:
        """Yield what is wrong with the overlap of runs, and with the counts of the others."""
        span = self._span(name)
        if span is None:
            return
        plan, at_rest, runs = self.plans[name], self._counts(name), self._runs[name]
        self.checked += len(runs)
        if at_rest.missed and not self._may_be_late:
            yield self._violation(name, f"missed {at_rest.missed} instants for no reason")
        if plan.overlap not in _ONE_AT_A_TIME:
            if at_rest.skipped:
                yield self._violation(name, f"skipped {at_rest.skipped} that may overlap")
            return
        by_begin = sorted(runs, key=lambda run: (run.created_ms, run.changed_ms))
        for one, other in pairwise(by_begin):
            # Both stamps are of the shard's clock, which never goes back.
            if one.changed_ms > other.created_ms:
                yield self._violation(name, f"{one.task} and {other.task} were open together")
        if plan.overlap in ("queue", "cancel") and at_rest.skipped:
            yield self._violation(name, f"skipped {at_rest.skipped} that it need not skip")
        if plan.overlap == "skip" and not at_rest.missed:
            yield from self._skipped(name, *span)

    def _skipped(self, name: str, since_ms: int, until_ms: int) -> Iterator[Violation]:
        """Yield the instants without a run while no run was open."""
        fired = {run.at_ms for run in self._runs[name]}
        for at_ms in instants(self.plans[name], since_ms, until_ms):
            if at_ms in fired:
                continue
            if not any(run.at_ms < at_ms <= run.changed_ms for run in self._runs[name]):
                if self._may_be_late:
                    continue  # By some clock it was another time.
                yield self._violation(name, f"{at_ms} was skipped while nothing was open")

    def _span(self, name: str) -> tuple[int, int] | None:
        """Return the first instant, and the first that is not decided; None if nobody can tell."""
        first = [op for op in self._puts[name] if op.ok and op.out.counts is not None]
        final = self._finals.get(name)
        earlier = [op for op in self._puts[name] if not op.ok]
        if not first or final is None or final.out.counts is None:
            return None
        if any(op.call_ns < first[0].ret_ns for op in earlier):
            return None  # That one may have begun it.
        counts = first[0].out.counts
        assert counts is not None
        if counts.made + counts.missed + counts.skipped or not counts.next_ms:
            return None
        return counts.next_ms, final.out.counts.next_ms

    def _counts(self, name: str) -> Counts:
        counts = self._finals[name].out.counts
        assert counts is not None
        return counts

    def _violation(self, name: str, text: str) -> Violation:
        assert self._census is not None
        events = [*self._puts[name][0].events, *self._census.events]
        if name in self._finals:
            events += self._finals[name].events
        return Violation(text=f"{name}: {text}", events=tuple(events))


def _last(history: History, f: F) -> dict[str, Op]:
    """Return the last acknowledged operation of a kind on each schedule."""
    return {op.args.schedule: op for op in history.by_f[f] if op.ok}


def _wall_ns(history: History) -> int | None:
    """Return what the harness's clock on the wall showed when the history began."""
    setup = history.phases.get("setup")
    if setup is None or not setup.args.detail:
        return None
    return int(setup.args.detail) - setup.t_ns


def _may_be_late(history: History) -> bool:
    """Return whether an instant may have been a minute late, by some clock or for want of one."""
    if any(fault.name in ("clock", "drift") for fault in history.faults):
        return True
    looks = [op.done_ns for f in (F.PUT_SCHEDULE, F.SCHEDULE) for op in history.by_f[f] if op.ok]
    looks = sorted(each for each in looks if each != NEVER_NS)
    return any(later - sooner > LATE_NS for sooner, later in pairwise(looks))


def instants(plan: Plan, since_ms: int, until_ms: int) -> list[int]:
    """Return the instants of a plan from one on and before another, each looked at by itself."""
    return list(_instants(plan, since_ms, until_ms))


@lru_cache(maxsize=64)
def _instants(plan: Plan, since_ms: int, until_ms: int) -> tuple[int, ...]:
    if plan.every:
        step_ms = int(plan.every.removesuffix("s")) * 1000
        first_ms = -(-since_ms // step_ms) * step_ms
        return tuple(range(first_ms, until_ms, step_ms))
    words = plan.cron.split()
    if len(words) == 6:
        return tuple(ms for ms in _seconds(since_ms, until_ms) if _shows(words, plan.zone, ms))
    if words[0].startswith("*"):
        return tuple(ms for ms in _minutes(since_ms, until_ms) if _shows(words, plan.zone, ms))
    return tuple(_once_a_day(words, plan.zone, since_ms, until_ms))


def _seconds(since_ms: int, until_ms: int) -> range:
    return range(-(-since_ms // 1000) * 1000, until_ms, 1000)


def _minutes(since_ms: int, until_ms: int) -> range:
    return range(-(-since_ms // 60_000) * 60_000, until_ms, 60_000)


def _shows(words: list[str], zone: str, ms: int) -> bool:
    """Return whether a clock shows a time of the steps `*/n` of the first word, or of `*`."""
    shown = _clock(zone, ms)
    step = int(words[0].removeprefix("*/")) if "/" in words[0] else 1
    return (shown.second if len(words) == 6 else shown.minute) % step == 0


def _once_a_day(words: list[str], zone: str, since_ms: int, until_ms: int) -> Iterator[int]:
    """Yield the instants of a fixed time: the end of a gap that has it, the first of two."""
    minute, hour = int(words[0]), int(words[1])
    done = None
    before = _clock(zone, since_ms - 60_000)
    for ms in _minutes(since_ms - 86_400_000, until_ms):
        shown = _clock(zone, ms)
        wanted = shown.replace(hour=hour, minute=minute, second=0)
        skipped = shown - before > timedelta(minutes=1) and before < wanted < shown
        if (shown == wanted or skipped) and done != shown.date():
            done = shown.date()
            if ms >= since_ms:
                yield ms
        before = shown


def _clock(zone: str, ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
