"""Leases: tokens grow (G5), no lease ends early (G6), and heartbeats keep a lease (G14)."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.operations import MS, History, Op, TaskOps

NOT_OURS = frozenset({"lease-lost", "not-in-progress", "not-owner", "not-found"})


def tokens_grow(history: History) -> Verdict:
    """G5: of two claims of a task, one after the other, the later has the higher token."""
    found = [
        violation for task in history.tasks.values() for violation in _tokens_fall(task.claims)
    ]
    checked = sum(max(0, len(task.claims) - 1) for task in history.tasks.values())
    return judged("G5", found, checked=checked)


def held_to_the_end(history: History) -> Verdict:
    """G6: a task is not leased again before its lease ran out, unless it was returned."""
    found = []
    checked = 0
    for task in history.tasks.values():
        for held, next_ in zip(task.claims, task.claims[1:], strict=False):
            checked += 1
            ends_ns = _held_until_ns(task, held) - history.clock_ns
            if next_.ret_ns < ends_ns and not _ended(task, held, before_ns=next_.ret_ns):
                early_ms = (ends_ns - next_.ret_ns) // MS
                found.append(
                    Violation(
                        text=f"{task.id} was leased again at least {early_ms} ms early",
                        events=(*held.events, *next_.events),
                        task=task.id,
                    )
                )
    return judged("G6", found, checked=checked)


def kept_up(history: History) -> Verdict:
    """G14: a worker whose heartbeats are answered in time keeps the lease."""
    found = []
    checked = 0
    for task in history.tasks.values():
        by_token = {claim.out.token: claim for claim in task.claims}
        for beat in (*task.heartbeats, *task.results):
            held = by_token.get(beat.args.token)
            if held is None:
                continue
            checked += beat.ok
            if beat.possible or beat.out.code not in NOT_OURS:
                continue
            ends_ns = _held_until_ns(task, held) - history.clock_ns
            if beat.ret_ns < ends_ns and not _ended(task, held, before_ns=beat.ret_ns):
                left_ms = (ends_ns - beat.ret_ns) // MS
                found.append(
                    Violation(
                        text=f"{task.id} was taken from its holder {left_ms} ms early",
                        events=(*held.events, *beat.events),
                        task=task.id,
                    )
                )
    return judged("G14", found, checked=checked)


def lease_ended_ns(history: History, task: TaskOps, held: Op) -> int:
    """Return the first instant at which a lease may have ended."""
    ends = [
        op.call_ns
        for op in (*task.releases, *task.results, *task.cancels)
        if op.possible and op.args.token in (0, held.out.token)
    ]
    return min([_held_until_ns(task, held) - history.clock_ns, *ends])


def _tokens_fall(claims: list[Op]) -> Iterator[Violation]:
    seen: dict[int, Op] = {}
    for claim in claims:
        twin = seen.get(claim.out.token)
        if twin is not None:
            yield Violation(
                text=f"{claim.out.task} was leased twice with one token",
                events=(*twin.events, *claim.events),
                task=claim.out.task,
            )
        seen[claim.out.token] = claim
    # By ascending token, no claim may have ended before one with a lower token began.
    by_call = sorted(claims, key=lambda op: op.call_ns)
    by_ret = sorted(claims, key=lambda op: op.ret_ns)
    highest: Op | None = None
    done = 0
    for claim in by_call:
        while by_ret[done].ret_ns < claim.call_ns:
            before = by_ret[done]
            if highest is None or before.out.token > highest.out.token:
                highest = before
            done += 1
        if highest is not None and claim.out.token < highest.out.token:
            yield Violation(
                text=f"{claim.out.task}: a token was followed by a lower one",
                events=(*highest.events, *claim.events),
                task=claim.out.task,
            )


def _held_until_ns(task: TaskOps, held: Op) -> int:
    """Return until when a lease certainly ran if the task was not returned.

    Every heartbeat sets a new end. Of concurrent heartbeats, the one with the shortest extension
    may take effect last, so that one gives the bound.
    """
    beats = [op for op in task.heartbeats if op.args.token == held.out.token]
    asked_ms = [held.args.lease_ms, *(op.args.lease_ms for op in beats if op.possible)]
    begun_ns = max([held.call_ns, *(op.call_ns for op in beats if op.ok)])
    return begun_ns + min(asked_ms) * MS


def _ended(task: TaskOps, held: Op, *, before_ns: int) -> bool:
    """Return whether anything but its expiry may have ended a lease before an instant."""
    return any(
        op.possible and op.call_ns < before_ns and op.args.token in (0, held.out.token)
        for op in (*task.releases, *task.results, *task.cancels)
    )
