"""Story: a history written by hand, for the tests of the checkers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from jepsen_lite.history import Args, Event, F, Follow, Group, Out, Type, renumbered
from jepsen_lite.operations import SECOND, History

At = tuple[float, float]


class Story:
    """Collects events in any order. Instants are in seconds; each operation has its own process.

    An operation is `ok` by default; one of type `info` ends without an answer.
    """

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = itertools.count()

    def history(self) -> History:
        """Return the events, in order."""
        self._events.sort(key=lambda each: each[:2])
        return History(list(renumbered(event for _, _, event in self._events)))

    def op(
        self,
        f: F,
        at: At,
        kind: Type,
        args: Args,
        out: Out,
        *,
        node: str = "n1",
    ) -> None:
        """Add any operation."""
        p = f"p{next(self._numbers)}"
        self._add(at[0], p, f, Type.INVOKE, node=node, args=args)
        self._add(at[1], p, f, kind, node=node, out=out)

    def create(
        self,
        task: str,
        at: At,
        kind: Type = Type.OK,
        *,
        content: str = "",
        key: str = "",
        shard: int = 0,
        priority: int = 0,
        delay_s: float = 0,
        attempts_max: int = 0,
        webhook: bool = False,
        code: str = "",
        deadline_ms: int = 0,
        final: bool = False,
        lane: str = "",
        command: str = "work",
    ) -> None:
        """Add a create that makes `task`; its payload is the task's name unless given."""
        args = Args(
            content=content or f"payload of {task}",
            command=command,
            idempotency_key=key,
            shard=shard if key else -1,
            priority=priority,
            delay_ms=int(delay_s * 1000),
            attempts_max=attempts_max,
            webhook=webhook,
            deadline_ms=deadline_ms,
            final=final,
            key=lane,
        )
        self.op(F.CREATE, at, kind, args, Out(task=task, shard=shard, code=code))

    def claim(
        self,
        task: str,
        at: At,
        *,
        token: int = 1,
        attempt: int = 1,
        lease_s: float = 10,
        shard: int = 0,
        content: str = "",
        kind: Type = Type.OK,
    ) -> None:
        """Add a claim; one without a task found nothing."""
        args = Args(command="work", lease_ms=int(lease_s * 1000))
        out = Out(
            task=task,
            token=token,
            attempt=attempt,
            shard=shard,
            content=content or f"payload of {task}",
        )
        self.op(F.CLAIM, at, kind, args, out if task and kind is Type.OK else Out())

    def beat(
        self,
        task: str,
        at: At,
        *,
        token: int = 1,
        lease_s: float = 10,
        kind: Type = Type.OK,
        code: str = "",
    ) -> None:
        """Add a heartbeat."""
        args = Args(task=task, token=token, lease_ms=int(lease_s * 1000))
        self.op(F.HEARTBEAT, at, kind, args, Out(code=code))

    def result(
        self,
        task: str,
        at: At,
        *,
        token: int = 1,
        content: str = "",
        kind: Type = Type.OK,
        code: str = "",
        following: Sequence[Follow] = (),
        made: Sequence[Follow] = (),
    ) -> None:
        """Add a result, unique to task and token unless given, with what it asks for and makes."""
        args = Args(
            next=tuple(following),
            task=task,
            token=token,
            content=content or f"result of {task} by {token}",
            status="COMPLETED",
        )
        self.op(F.RESULT, at, kind, args, Out(code=code, next=tuple(made)))

    def give_back(
        self,
        task: str,
        at: At,
        *,
        token: int = 1,
        nack_s: float | None = None,
        hold: bool = False,
        queue: str = "",
        dead: bool = False,
        kind: Type = Type.OK,
    ) -> None:
        """Add an abandon, or a nack with a delay, which may hold the key, or the queue named."""
        delay_ms = int((nack_s or 0) * 1000)
        args = Args(
            task=task, token=token, delay_ms=delay_ms, hold=hold or bool(queue), command=queue
        )
        self.op(F.ABANDON if nack_s is None else F.NACK, at, kind, args, Out(dead=dead))

    def set_key(self, key: str, at: At, kind: Type = Type.OK, *, paused: bool = False) -> None:
        """Pause a key, or resume it."""
        self.op(F.SET_KEY, at, kind, Args(command="work", key=key, paused=paused), Out())

    def cancel(self, task: str, at: At, kind: Type = Type.OK) -> None:
        """Add a cancel."""
        self.op(F.CANCEL, at, kind, Args(task=task), Out())

    def requeue(self, task: str, at: At) -> None:
        """Add a requeue of a dead letter."""
        self.op(F.REQUEUE, at, Type.OK, Args(task=task), Out())

    def read(
        self,
        task: str,
        at: At,
        status: str,
        *,
        location: str = "",
        content: str = "",
        payload: str = "",
        attempt: int = 0,
        error: str = "",
        final: bool = False,
        made: Sequence[Follow] = (),
        parent: str = "",
    ) -> None:
        """Add a read; without a status the task does not exist."""
        out = Out(
            status=status,
            location=location,
            content=content,
            payload=payload,
            attempt=attempt,
            error=error,
            absent=not status,
            next=tuple(made),
            parent=parent,
        )
        self.op(F.READ, at, Type.OK, Args(task=task, final=final), out)

    def fault(
        self,
        name: str,
        at: At,
        nodes: Sequence[str] = ("n1",),
        *,
        applied: int = 1,
        amount_ms: int = 0,
        took_ms: int = 0,
        detail: str = "",
    ) -> None:
        """Add a fault and its end."""
        args = Args(name=name, nodes=tuple(nodes), on=True, amount_ms=amount_ms, detail=detail)
        self._add(at[0], "nemesis", F.FAULT, Type.INFO, args=args, out=Out(applied=applied))
        ended = Args(name=name, nodes=tuple(nodes))
        self._add(at[1], "nemesis", F.FAULT, Type.INFO, args=ended, out=Out(took_ms=took_ms))

    def status(self, node: str, at_s: float, *groups: Group, p: str = "observer") -> None:
        """Add a node's report on its shards, or an autopsy."""
        self._add(at_s, p, F.STATUS, Type.INFO, node=node, out=Out(groups=groups))

    def delivery(
        self,
        task: str,
        at_s: float,
        *,
        status: str = "COMPLETED",
        content: str = "",
        delivery: str = "d1",
        signed: bool = True,
    ) -> None:
        """Add a webhook call that was answered with 200."""
        args = Args(task=task, status=status, content=content)
        out = Out(http=200, delivery=delivery, signed=signed)
        self._add(at_s, "sink", F.DELIVERY, Type.INFO, args=args, out=out)

    def phase(self, name: str, at_s: float, nodes: Sequence[str] = (), *, detail: str = "") -> None:
        """Add the beginning of a phase."""
        args = Args(name=name, nodes=tuple(nodes), detail=detail)
        self._add(at_s, "harness", F.PHASE, Type.INFO, args=args)

    def _add(
        self,
        at_s: float,
        p: str,
        f: F,
        kind: Type,
        *,
        node: str = "",
        args: Args | None = None,
        out: Out | None = None,
    ) -> None:
        event = Event(
            i=0,
            t_ns=round(at_s * SECOND),
            p=p,
            f=f,
            type=kind,
            node=node,
            args=args or Args(),
            out=out or Out(),
        )
        self._events.append((at_s, next(self._numbers), event))
