"""Simulated: histories of a perfect broker on virtual time, and of one with a planted flaw.

The checkers must find nothing in the first and the flaw in the second. So the tests of the checkers
need no cluster, and a checker can be timed on a history of any length.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from jepsen_lite.history import Args, Event, F, Out, Type
from jepsen_lite.operations import MS, SECOND

WORKERS = 4
PRODUCERS = 3
ATTEMPTS_MAX = 4
LEASE_MS = 2000
SHARDS = 2
DRAIN_NS = 40 * SECOND  # Time for several leases and delays in sequence.


class Flaw(StrEnum):
    """The flaw of a broker."""

    LOSES = "an acknowledged task is gone"
    ALTERS = "a payload is changed"
    REFUSES_AND_DOES = "a create is refused and carried out"
    DOUBLES = "a key makes a second task"
    REPEATS_TOKEN = "a token is given twice"
    EXPIRES_EARLY = "a lease ends halfway"
    TAKES_STALE = "a result with an old token is taken"
    RESURRECTS = "a finished task is delivered again"
    HIDES = "an abandoned task is not found any more"
    FORGETS_ATTEMPTS = "deliveries are counted from zero"
    IGNORES_DELAY = "a delayed task is ready at once"
    LAST_FIRST = "the newest task is delivered first"
    IGNORES_PRIORITY = "a low priority goes first"
    DROPS_BEATS = "a heartbeat is answered and forgotten"
    READS_STALE = "a read shows what was before"


class _Row(Struct):
    id: str
    args: Args
    shard: int
    seq: int
    state: str = "ready"
    token: int = 0
    attempt: int = 0
    due_ns: int = 0
    status: str = ""
    content: str = ""
    error: str = ""
    before: str = ""


class _Worker(Struct):
    task: str = ""
    token: int = 0
    until_ns: int = 0
    beats: int = 0


def history(seed: int, *, creates: int, flaw: Flaw | None = None) -> list[Event]:
    """Return the events of a run to its end: load, drain, reads of every task."""
    return _Run(seed, creates, flaw).events()


class _Run:
    def __init__(self, seed: int, creates: int, flaw: Flaw | None) -> None:
        self._rng = random.Random(seed)
        self._flaw = flaw
        self._left = creates
        self._creates = creates
        self._now = 0
        self._last_ns = 0
        self._turn = itertools.count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._events: list[Event] = []
        self._rows: dict[str, _Row] = {}
        self._by_key: dict[str, str] = {}
        self._ready: dict[int, list[_Row]] = {shard: [] for shard in range(SHARDS)}
        self._timed: list[tuple[int, int, _Row]] = []

    def events(self) -> list[Event]:
        self._phase("setup")
        for n in range(PRODUCERS):
            self._later(0, lambda n=n: self._produce(f"producer-{n}"))  # type: ignore[misc]
        for n in range(WORKERS):
            self._later(0, lambda n=n: self._work(f"worker-{n}", _Worker()))  # type: ignore[misc]
        self._run()
        self._phase("converged")
        self._phase("drained")
        self._phase("final")
        for task_id in sorted(self._rows):
            self._later(0, lambda task_id=task_id: self._read(task_id))  # type: ignore[misc]
        self._run()
        return self._events

    # Time.

    def _later(self, ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self._now + ns, next(self._turn), act))

    def _run(self) -> None:
        while self._agenda:
            self._now, _, act = heapq.heappop(self._agenda)
            self._tick()
            act()

    def _soon(self, most_ms: float) -> int:
        return int(self._rng.uniform(0.1, most_ms) * MS)

    # Clients.

    def _call(
        self,
        p: str,
        f: F,
        args: Args,
        serve: Callable[[], tuple[Type, Out]],
        then: Callable[[str, Type, Out], None],
    ) -> None:
        """Invoke an operation, carry it out a little later and answer it later still."""
        self._record(p, f, Type.INVOKE, args=args)
        lost = self._rng.random() < 0.03
        arrives = not lost or self._rng.random() < 0.5

        def happen() -> None:
            kind, out = serve() if arrives else (Type.INFO, Out())
            if lost:
                kind, out = Type.INFO, Out()

            def answer() -> None:
                self._record(p, f, kind, out=out)
                # The outcome of a lost call is unknown, so its process makes no more calls.
                heir = f"{p}'" if kind is Type.INFO else p
                self._later(self._soon(10), lambda: then(heir, kind, out))

            self._later(self._soon(5), answer)

        self._later(self._soon(5), happen)

    def _produce(self, p: str) -> None:
        if not self._left:
            return
        self._left -= 1
        n = self._creates - self._left
        rng = self._rng
        args = Args(
            content=f'{{"n":{n}}}',
            command="work",
            idempotency_key=f"key-{n}" if rng.random() < 0.5 else "",
            priority=rng.choice((0, 0, 0, 5)),
            delay_ms=rng.choice((0, 0, 0, 0, 500)),
            attempts_max=ATTEMPTS_MAX,
        )
        self._send(p, args)

    def _send(self, p: str, args: Args) -> None:
        def then(heir: str, kind: Type, _out: Out) -> None:
            # A create with a key is safe to repeat; one in five is repeated without need.
            if args.idempotency_key and (kind is not Type.OK or self._rng.random() < 0.2):
                self._send(heir, args)
            else:
                self._later(self._soon(150), lambda: self._produce(heir))

        self._call(p, F.CREATE, args, lambda: self._create(args), then)

    def _work(self, p: str, worker: _Worker) -> None:
        if worker.task:
            self._finish(p, worker)
            return
        if self._over():
            return
        args = Args(command="work", lease_ms=LEASE_MS)

        def then(heir: str, kind: Type, out: Out) -> None:
            if kind is Type.OK and out.task:
                worker.task, worker.token, worker.beats = out.task, out.token, 0
                self._work(heir, worker)
            else:
                self._later(self._soon(200), lambda: self._work(heir, worker))

        self._call(p, F.CLAIM, args, self._claim, then)

    def _over(self) -> bool:
        """Return whether all tasks have ended, or the drain is over."""
        if self._left:
            self._last_ns = self._now
            return False
        if self._now < self._last_ns + SECOND:
            return False  # The last creates are still in flight.
        open_ = any(row.state not in {"done", "dead"} for row in self._rows.values())
        return not open_ or self._now > self._last_ns + DRAIN_NS

    def _finish(self, p: str, worker: _Worker) -> None:
        args = Args(task=worker.task, token=worker.token)
        draw = self._rng.random()

        def next_(heir: str, kind: Type, _out: Out) -> None:
            if kind is Type.OK and worker.beats:
                self._later(int(LEASE_MS * MS * 0.7), lambda: self._work(heir, worker))
                return
            worker.task = ""
            self._work(heir, worker)

        if draw < 0.08 and self._left:
            # The worker is too slow: the lease expires, and the late result must be refused.
            worker.beats = 0
            late = Args(
                task=worker.task,
                token=worker.token,
                content=f"{worker.task}/{worker.token}",
                status="COMPLETED",
            )
            wait_ns = int(LEASE_MS * MS * self._rng.uniform(0.5, 2.5))
            self._later(
                wait_ns, lambda: self._call(p, F.RESULT, late, lambda: self._result(late), next_)
            )
        elif draw < 0.2 and worker.beats < 3:
            worker.beats += 1
            beat = Args(task=worker.task, token=worker.token, lease_ms=LEASE_MS)
            self._call(p, F.HEARTBEAT, beat, lambda: self._beat(beat), next_)
        elif draw < 0.28:
            worker.beats = 0
            self._call(p, F.ABANDON, args, lambda: self._give_back(args), next_)
        elif draw < 0.36:
            worker.beats = 0
            nack = Args(task=worker.task, token=worker.token, delay_ms=300)
            self._call(p, F.NACK, nack, lambda: self._give_back(nack), next_)
        else:
            worker.beats = 0
            done = Args(
                task=worker.task,
                token=worker.token,
                content=f"{worker.task}/{worker.token}",
                status="COMPLETED",
            )
            self._call(p, F.RESULT, done, lambda: self._result(done), next_)

    def _read(self, task_id: str) -> None:
        p = f"reader-{task_id}"
        self._record(p, F.READ, Type.INVOKE, args=Args(task=task_id, final=True))
        self._record(p, F.READ, Type.OK, out=self._seen(task_id))

    # The broker.

    def _tick(self) -> None:
        while self._timed and self._timed[0][0] <= self._now:
            due_ns, _, row = heapq.heappop(self._timed)
            if row.state == "delayed" and row.due_ns == due_ns:
                self._make_ready(row)
            elif row.state == "leased" and row.due_ns == due_ns:
                self._back(row, 0)

    def _create(self, args: Args) -> tuple[Type, Out]:
        flawed = self._strikes()
        known = self._by_key.get(args.idempotency_key)
        if known and not (self._flaw is Flaw.DOUBLES and flawed):
            row = self._rows[known]
            return Type.OK, Out(task=row.id, shard=row.shard, replayed=True)
        seq = next(self._turn)
        row = _Row(f"t{seq}", args, self._rng.randrange(SHARDS), seq)
        if args.idempotency_key:
            self._by_key[args.idempotency_key] = row.id
        if self._flaw is Flaw.LOSES and flawed:
            return Type.OK, self._lost(row)
        self._rows[row.id] = row
        if self._flaw is Flaw.ALTERS and flawed:
            row.args = Args(content=args.content + " ", command="work", attempts_max=ATTEMPTS_MAX)
        if args.delay_ms and not (self._flaw is Flaw.IGNORES_DELAY and flawed):
            self._wait(row, args.delay_ms)
        else:
            self._make_ready(row)
        if self._flaw is Flaw.REFUSES_AND_DOES and flawed and not args.idempotency_key:
            return Type.FAIL, Out(code="no-leader")
        return Type.OK, Out(task=row.id, shard=row.shard)

    def _lost(self, row: _Row) -> Out:
        row.state = "lost"
        self._rows[row.id] = row
        return Out(task=row.id, shard=row.shard)

    def _claim(self) -> tuple[Type, Out]:
        waiting = [row for rows in self._ready.values() for row in rows]
        done = [row for row in self._rows.values() if row.state == "done"][-3:]
        if self._flaw is Flaw.RESURRECTS and done and self._strikes():
            row = self._rng.choice(done)
        elif not waiting:
            return Type.OK, Out()
        else:
            row = self._chosen(waiting)
            self._ready[row.shard].remove(row)
        if not (self._flaw is Flaw.REPEATS_TOKEN and row.token and self._strikes()):
            row.token += 1
        row.attempt = 1 if self._flaw is Flaw.FORGETS_ATTEMPTS else row.attempt + 1
        row.before = row.status
        row.state = "leased"
        early = self._flaw is Flaw.EXPIRES_EARLY and self._strikes()
        self._until(row, LEASE_MS // 4 if early else LEASE_MS)
        return Type.OK, Out(
            task=row.id,
            token=row.token,
            attempt=row.attempt,
            shard=row.shard,
            content=row.args.content,
        )

    def _chosen(self, waiting: list[_Row]) -> _Row:
        if self._flaw is Flaw.LAST_FIRST and self._strikes():
            return max(waiting, key=lambda row: row.seq)
        if self._flaw is Flaw.IGNORES_PRIORITY and self._strikes():
            return min(waiting, key=lambda row: (row.args.priority, row.seq))
        return min(waiting, key=lambda row: (-row.args.priority, row.seq))

    def _beat(self, args: Args) -> tuple[Type, Out]:
        row = self._rows[args.task]
        if row.state != "leased" or row.token != args.token:
            return Type.FAIL, Out(code="lease-lost")
        if self._flaw is not Flaw.DROPS_BEATS:
            self._until(row, args.lease_ms)
        return Type.OK, Out()

    def _result(self, args: Args) -> tuple[Type, Out]:
        row = self._rows[args.task]
        holds = row.state == "leased" and row.token == args.token
        if not holds and not (self._flaw is Flaw.TAKES_STALE and row.state != "dead"):
            return Type.FAIL, Out(code="lease-lost")
        if row.state == "ready":
            self._ready[row.shard].remove(row)
        row.state, row.status, row.content = "done", "COMPLETED", args.content
        return Type.OK, Out(content=args.content)

    def _give_back(self, args: Args) -> tuple[Type, Out]:
        row = self._rows[args.task]
        if row.state != "leased" or row.token != args.token:
            return Type.FAIL, Out(code="lease-lost")
        dead = self._back(row, args.delay_ms)
        return Type.OK, Out(dead=dead)

    def _back(self, row: _Row, delay_ms: int) -> bool:
        if row.attempt >= ATTEMPTS_MAX:
            row.state, row.status, row.error = "dead", "FAILED", "MAX_ATTEMPTS"
            return True
        if self._flaw is Flaw.HIDES and self._strikes():
            row.state = "lost in sight"
        elif delay_ms:
            self._wait(row, delay_ms)
        else:
            self._make_ready(row)
        return False

    def _seen(self, task_id: str) -> Out:
        row = self._rows[task_id]
        if row.state == "lost":
            return Out(absent=True)
        locations = {"done": "NONE", "dead": "DLQ_SET", "leased": "INPROG_SET"}
        status = row.status or ("IN_PROGRESS" if row.state == "leased" else "PENDING")
        if self._flaw is Flaw.READS_STALE and self._strikes():
            status = "IN_PROGRESS"
        ended = status in {"COMPLETED", "FAILED"}
        return Out(
            status=status,
            location=locations.get(row.state, "PENDING_LIST") if ended else "PENDING_LIST",
            content=row.content if status == "COMPLETED" else "",
            payload=row.args.content,
            attempt=row.attempt,
            error=row.error if ended else "",
        )

    def _make_ready(self, row: _Row) -> None:
        row.state, row.seq = "ready", next(self._turn)
        self._ready[row.shard].append(row)

    def _wait(self, row: _Row, delay_ms: int) -> None:
        row.state = "delayed"
        self._until(row, delay_ms)

    def _until(self, row: _Row, ms: int) -> None:
        row.due_ns = self._now + ms * MS
        heapq.heappush(self._timed, (row.due_ns, next(self._turn), row))

    def _strikes(self) -> bool:
        return self._flaw is not None and self._rng.random() < 0.2

    # The record.

    def _phase(self, name: str) -> None:
        self._now += SECOND
        self._record("harness", F.PHASE, Type.INFO, args=Args(name=name))

    def _record(
        self, p: str, f: F, kind: Type, *, args: Args | None = None, out: Out | None = None
    ) -> None:
        self._events.append(
            Event(
                i=len(self._events),
                t_ns=self._now,
                p=p,
                f=f,
                type=kind,
                node="n1",
                args=args or Args(),
                out=out or Out(),
            )
        )
