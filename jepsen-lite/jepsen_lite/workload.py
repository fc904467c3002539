"""Workload: clients, their operations and their rates, all drawn from the seed."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from jepsen_lite.asking import Answer, Asker, Process, content_of
from jepsen_lite.bulk import Bulk
from jepsen_lite.clients import PAUSE_S, Clients
from jepsen_lite.db import WORKERS_MAX
from jepsen_lite.graces import Graces
from jepsen_lite.graphs import Graphs
from jepsen_lite.groups import Groups
from jepsen_lite.history import Args, F, Follow, Out, Type
from jepsen_lite.keys import OF_QUEUE, key_name, limited_with, slowest
from jepsen_lite.mixes import Mix
from jepsen_lite.operations import TERMINAL
from jepsen_lite.orders import Orders
from jepsen_lite.pauses import Pauses
from jepsen_lite.rejects import Rejects
from jepsen_lite.schedules import Schedules
from jepsen_lite.uniques import Uniques
from jepsen_lite.watching import Watching

PROBE_EVERY_S = 0.5
TRIES = 8
DRAINERS = 6
DRAIN_WITHIN_S = 120.0
READERS = 12
LOADERS = 4
READ_TRIES = 4
# The final reads stop after this long without any answer; tasks unread by then stay unjudged.
SILENT_S = 60.0
# A task that no result made is followed by at most so many, one after the other; a result makes at
# most so many at once; and so many keys are shared by the results of a run.
CHAIN = 3
FAN = 3
SHARED_KEYS = 40
# The queue counts as empty after this many empty polls in a row on every node.
EMPTY_POLLS = 3

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


class Known:
    """Tasks the clients know of, and which of them need no more work."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.ended: set[str] = set()
        self.with_webhook: set[str] = set()
        self.contents_by_key: dict[str, str] = {}
        self._seen: set[str] = set()
        self._delivered: set[str] = set()
        self._owed: set[str] = set()

    def hear(self, task_id: str, *, webhook: bool = False) -> bool:
        """Remember a task; return whether it is new."""
        is_new = bool(task_id) and task_id not in self._seen
        if is_new:
            self._seen.add(task_id)
            self.ids.append(task_id)
        if task_id and webhook:
            self.with_webhook.add(task_id)
        return is_new

    def delivered(self, content: str) -> None:
        """Note that a worker has a task with this payload, which is owed no longer."""
        self._delivered.add(content)
        self._owed.discard(content)

    def owe(self, following: Sequence[Follow]) -> None:
        """Note that an accepted result makes these tasks.

        Those without a key are known by their ids.
        """
        self._owed |= {each.content for each in following if each.key} - self._delivered

    @property
    def busy(self) -> bool:
        """Whether a task has not ended, or an accepted result makes one that nobody had yet."""
        return bool(self._owed) or any(task_id not in self.ended for task_id in self.ids)

    @property
    def open(self) -> list[str]:
        """Tasks that are not known to have ended, oldest first."""
        return [task_id for task_id in self.ids if task_id not in self.ended]


class Workload(Clients):
    """The clients of one run."""

    def __init__(self, mix: Mix, client: Asker, *, seed: int, shards: int) -> None:
        super().__init__(client, seed=seed)
        self.known = Known()
        # Nodes for the final reads; the caller removes those that are out for good.
        self.nodes = list(client.nodes)
        self._mix = mix
        self._shards = shards
        self._numbers = itertools.count()
        drawn = (
            (Schedules, mix.schedules),
            (Groups, mix.groups),
            (Graphs, mix.graphs),
            (Uniques, mix.uniques),
            (Orders, mix.orders),
            (Bulk, mix.bulk),
            (Graces, mix.graces),
            (Rejects, mix.rejects),
            (Watching, mix.watchers),
        )
        self._pauses = None
        if mix.keys:
            self._pauses = Pauses(client, seed=seed, command=mix.command, keys=mix.keys)
        self._parts = [part(client, seed=seed, rate=rate) for part, rate in drawn if rate]

    async def load(self) -> bool:
        """Grow the state to its intended size, and put its rules; return whether that succeeded."""
        waiting = iter(range(self._mix.ballast))

        async def fill() -> bool:
            return all([await self._client.weigh_down() for _ in waiting])

        governed = True
        if self._pauses is not None or self._mix.command in OF_QUEUE:
            governed = await self._client.govern(self._mix.command)
        if self._pauses is not None:
            governed = governed and await self._pauses.begin()
        return governed and all(await asyncio.gather(*(fill() for _ in range(LOADERS))))

    async def run(self, stop: asyncio.Event) -> None:
        """Create, work, read and interfere until `stop` is set; return after the last answer."""
        self._stop = stop
        mix = self._mix
        async with asyncio.TaskGroup() as clients:
            for n in range(mix.producers):
                clients.create_task(self._produce(n))
            for n in range(mix.workers):
                clients.create_task(self._work(f"worker-{n}"))
            for shard in range(self._shards):
                clients.create_task(self._probe(shard))
            for part in self._parts:
                clients.create_task(part.run(stop))
            if self._pauses is not None:
                clients.create_task(self._pauses.run(stop))
            for f, rate in (
                (F.CANCEL, mix.cancels),
                (F.READ, mix.reads),
                (F.REQUEUE, mix.requeues),
                (F.SIGNAL, mix.notes),
            ):
                # Several clients share the rate, so that one slow answer does not stop all of it.
                meddlers = min(8, max(1, round(rate)))
                for n in range(meddlers if rate else 0):
                    clients.create_task(self._meddle(f, n, rate / meddlers))

    async def drain(self, *, within_s: float = DRAIN_WITHIN_S) -> bool:
        """Finish all tasks; return whether every known task ended and every queue is empty.

        Tasks with a rate have as much longer as they need by that.
        """
        self._stop = asyncio.Event()
        # A long run leaves more than a rate lets go in that time, as if all were of one key.
        limits = OF_QUEUE.get(self._mix.command) or (slowest() if self._mix.keys else None)
        if limits is not None:
            within_s += len(self.known.open) / limits.per_second
        deadline = _now() + within_s
        for part in self._parts:
            if not await part.end(within_s=within_s):
                return False
        if self._pauses is not None and not await self._pauses.end():
            return False
        async with asyncio.TaskGroup() as clients:
            for n in range(DRAINERS):
                clients.create_task(self._drain(f"worker-{WORKERS_MAX - 1 - n}", deadline))
            clients.create_task(self._look(deadline))
        return not self.known.busy and await self._empty()

    async def read_all(self, *, silent_s: float = SILENT_S) -> bool:
        """Read every known task at rest; return whether all answered."""
        for part in self._parts:
            if not await part.read_all(silent_s=silent_s):
                return False
        waiting = deque(self.known.ids)
        unread: list[str] = []
        answered = _now()

        async def read(n: int) -> None:
            nonlocal answered
            process = Process(f"final-{n}", self._seed)
            while waiting:
                task_id = waiting.popleft()
                args = Args(task=task_id, final=True)
                answer = await self._client.retried(process, F.READ, args, tries=READ_TRIES)
                while answer.type is not Type.OK and not unread:
                    if _now() - answered > silent_s:
                        unread.append(task_id)
                        break
                    answer = await self._client.retried(process, F.READ, args, tries=READ_TRIES)
                if unread:
                    return
                answered = _now()
                waiting.extend([each async for each in self._made(process, answer.out.next)])

        await asyncio.gather(*(read(n) for n in range(READERS)))
        return not unread

    async def _made(self, process: Process, names: Sequence[Follow]) -> AsyncIterator[str]:
        """Yield the tasks of these names that nobody knew, by asking for those with keys.

        To create a task again by its key finds the one that is there.
        """
        for each in names:
            task_id = each.task
            if each.key:
                args = Args(
                    command=self._mix.command,
                    content=self.known.contents_by_key[each.key],
                    idempotency_key=each.key,
                    shard=shard_of_key(each.key, self._shards),
                    final=True,
                )
                answer = await self._client.retried(process, F.CREATE, args, tries=TRIES)
                task_id = answer.out.task
            if self.known.hear(task_id):
                yield task_id

    # Producers.

    async def _produce(self, n: int) -> None:
        process, twin = Process(f"producer-{n}", self._seed), Process(f"twin-{n}", self._seed)
        every_s = self._mix.producers / self._mix.rate
        while not await self._paused(process.random.uniform(0.5, 1.5) * every_s):
            args = self._new(process)
            sends = [self._create(process, args)]
            if args.idempotency_key and process.random.random() < self._mix.repeated:
                altered = process.random.random() < self._mix.altered
                again = self._payload(process, "altered") if altered else args.content
                sends.append(self._create(twin, msgspec.structs.replace(args, content=again)))
            await asyncio.gather(*sends)

    async def _create(self, process: Process, args: Args) -> None:
        # A create without a key may be repeated only if the first one certainly did nothing.
        tries = TRIES if args.idempotency_key else 1
        answer = await self._client.retried(process, F.CREATE, args, tries=tries)
        self.known.hear(answer.out.task, webhook=args.webhook)

    def _new(self, process: Process) -> Args:
        rng, mix = process.random, self._mix
        # Only a workload with keys draws one: the others' seeds keep their runs.
        lane = key_name(rng.randrange(mix.keys)) if mix.keys else ""
        keyed = rng.random() < mix.keyed
        key = f"{process.name}/{next(self._numbers)}" if keyed else ""
        return Args(
            command=self._one_of(process),
            content=self._payload(process, key or "no key"),
            idempotency_key=key,
            shard=shard_of_key(key, self._shards) if key and not lane else -1,
            priority=rng.choice(mix.priorities),
            attempts_max=rng.choice(mix.attempts_max),
            delay_ms=1000 * rng.randint(1, 6) if rng.random() < mix.delayed else 0,
            webhook=rng.random() < mix.webhooks,
            key=lane,
        )

    def _one_of(self, process: Process) -> str:
        """Return a queue of the workload; only where several share a limit it is drawn."""
        queues = limited_with(self._mix.command)
        return process.random.choice(queues) if len(queues) > 1 else queues[0]

    def _payload(self, process: Process, what: str) -> str:
        pad = "x" * process.random.choice(self._mix.pads)
        n = next(self._numbers)
        return content_of({"by": process.p, "n": n, "pad": pad, "what": what})

    async def _probe(self, shard: int) -> None:
        """Write to one shard through all nodes in turn until stopped; its recovery then shows."""
        process = Process(f"probe-{shard}", self._seed)
        turns = itertools.count()
        while not await self._paused(PROBE_EVERY_S):
            key = key_on(shard, f"{process.p}/{next(self._numbers)}", self._shards)
            args = Args(
                command=self._mix.command,
                content=self._payload(process, key),
                idempotency_key=key,
                shard=shard,
            )
            nodes = self._client.nodes
            node = nodes[next(turns) % len(nodes)]
            answer = await self._client.invoke(process, F.CREATE, args, node=node)
            self.known.hear(answer.out.task)

    # Workers.

    async def _work(self, worker: str) -> None:
        process = Process(worker, self._seed)
        while not self._stop.is_set():
            wait_ms = process.random.choice((0, 1000, 2000))
            answer = await self._claim(process, worker, wait_ms)
            if answer.type is Type.OK and answer.out.task:
                await self._handle(process, worker, answer.out)
            elif answer.type is not Type.OK or not wait_ms:
                await self._paused(process.random.uniform(PAUSE_S, 3 * PAUSE_S))

    async def _claim(
        self, process: Process, worker: str, wait_ms: int, *, node: str = "", lease_s: int = 0
    ) -> Answer:
        lease_s = lease_s or process.random.randint(*self._mix.lease_s)
        args = Args(
            command=self._one_of(process),
            # Half of the workers take any command, so that both ways to claim meet every fault.
            # With ballast none may: its tasks have a command of their own, and must stay. Nor may
            # one have runs, members, or tasks of graphs or unique keys, which no create has made.
            any_command=not (self._mix.ballast or self._parts)
            and int(worker.rpartition("-")[2]) % 2 == 1,
            lease_ms=1000 * lease_s,
            wait_ms=wait_ms,
        )
        answer = await self._client.invoke(process, F.CLAIM, args, node=node, worker=worker)
        self.known.hear(answer.out.task)
        self.known.delivered(answer.out.content)
        return answer

    async def _handle(self, process: Process, worker: str, task: Out) -> None:
        rng = process.random
        ways = msgspec.structs.asdict(self._mix.ways)
        [way] = rng.choices(list(ways), weights=list(ways.values()))
        lease_s = self._mix.lease_s[0]
        match way:
            case "abandon":
                await self._act(process, worker, F.ABANDON, task)
            case "nack":
                delay_ms = 1000 * rng.randint(1, 3)
                await self._act(process, worker, F.NACK, task, delay_ms=delay_ms)
            case "hold":
                delay_ms = 1000 * rng.randint(1, 2)
                await self._act(process, worker, F.NACK, task, delay_ms=delay_ms, hold=True)
            case "vanish":
                return
            case "late":
                # By then another worker may have the task, so a refusal is as good as an
                # acceptance.
                await self._paused(lease_s * rng.uniform(0.7, 2.5))
                await self._finish(process, worker, task)
            case "beat":
                held = await self._hold(process, worker, task, beats=rng.randint(2, 8))
                if held:
                    await self._finish(process, worker, task)
            case "fail":
                await self._finish(process, worker, task, failed=True)
            case _:
                await self._paused(rng.uniform(0, 0.2))
                await self._finish(process, worker, task)

    async def _hold(self, process: Process, worker: str, task: Out, *, beats: int) -> bool:
        lease_s = self._mix.lease_s[1]
        for _ in range(beats):
            answer = await self._act(
                process, worker, F.HEARTBEAT, task, lease_ms=1000 * lease_s, tries=3
            )
            if answer.type is Type.FAIL and not answer.again:
                return False
            if await self._paused(self._mix.lease_s[0] / 3):
                break
        return True

    async def _finish(
        self, process: Process, worker: str, task: Out, *, failed: bool = False
    ) -> None:
        told = {"by": worker, "task": task.task, "token": task.token}
        content = f"{worker} failed under {task.token}" if failed else content_of(told)
        status = "FAILED" if failed else "COMPLETED"
        following = self._following(process, task)
        answer = await self._act(
            process,
            worker,
            F.RESULT,
            task,
            content=content,
            status=status,
            following=following,
            tries=4,
        )
        if answer.type is Type.OK:
            self.known.ended.add(task.task)
            self.known.owe(following)
            for each in answer.out.next:
                self.known.hear(each.task)

    def _following(self, process: Process, task: Out) -> tuple[Follow, ...]:
        """Draw the tasks that follow a result; none at the end of a chain."""
        rng, follows = process.random, self._mix.follows
        # Only a workload with follow-ups draws: the others' seeds keep their runs.
        link = msgspec.json.decode(task.content).get("link", 0) + 1 if follows else 0
        if not follows or link > CHAIN or rng.random() >= follows:
            return ()
        return tuple(
            self._follow(process, task, link, position) for position in range(rng.randint(1, FAN))
        )

    def _follow(self, process: Process, task: Out, link: int, position: int) -> Follow:
        rng, key = process.random, ""
        said: dict[str, object] = {"link": link}
        said |= {"of": task.task, "token": task.token, "position": position}
        if rng.random() < 0.5:
            key = f"{task.task}/{task.token}/{position}"
            # A request never names a key twice, so each position shares keys of its own.
            if rng.random() < 0.3:
                key = f"shared/{rng.randrange(SHARED_KEYS)}/{position}"
                said = {"link": CHAIN, "key": key}
        content = content_of(said)
        if key:
            self.known.contents_by_key[key] = content
        return Follow(content=content, key=key)

    async def _act(
        self,
        process: Process,
        worker: str,
        f: F,
        task: Out,
        *,
        content: str = "",
        status: str = "",
        lease_ms: int = 0,
        delay_ms: int = 0,
        hold: bool = False,
        following: tuple[Follow, ...] = (),
        tries: int = 1,
    ) -> Answer:
        args = Args(
            command=self._mix.command if following or hold else "",
            next=following,
            task=task.task,
            token=task.token,
            content=content,
            status=status,
            lease_ms=lease_ms,
            delay_ms=delay_ms,
            hold=hold,
        )
        return await self._client.retried(process, f, args, tries=tries, worker=worker)

    # Others.

    async def _meddle(self, f: F, n: int, rate: float) -> None:
        process = Process(f"{f.value}-{n}", self._seed)
        while not await self._paused(process.random.uniform(0.5, 1.5) / rate):
            # Most choices are young tasks, because old ones have ended.
            task_ids = self.known.ids[-60:] if process.random.random() < 0.9 else self.known.ids
            if not task_ids:
                continue
            args = Args(task=process.random.choice(task_ids), command=self._mix.command)
            if f is F.SIGNAL and (waits := self.known.open):
                args = Args(task=process.random.choice(waits), name="note", content="1")
            answer = await self._client.invoke(process, f, args)
            if f is F.CANCEL and answer.type is Type.OK:
                self.known.ended.add(args.task)
            elif f is F.REQUEUE and answer.type is not Type.FAIL:
                self.known.ended.discard(args.task)

    async def _drain(self, worker: str, deadline: float) -> None:
        process = Process(f"drain-{worker}", self._seed)
        while self.known.busy and _now() < deadline:
            answer = await self._claim(process, worker, 1000, lease_s=5)
            if answer.type is Type.OK and answer.out.task:
                await self._finish(process, worker, answer.out)
            elif answer.type is not Type.OK:
                await asyncio.sleep(PAUSE_S)

    async def _look(self, deadline: float) -> None:
        """Find tasks that ended without an answer to their worker."""
        process = Process("look", self._seed)
        while self.known.busy and _now() < deadline:
            for task_id in self.known.open[:200]:
                answer = await self._client.invoke(process, F.READ, Args(task=task_id))
                if answer.out.status in TERMINAL or answer.out.absent:
                    self.known.ended.add(task_id)
            await asyncio.sleep(PAUSE_S)

    async def _empty(self) -> bool:
        process = Process("empty", self._seed)
        worker = f"worker-{WORKERS_MAX - 1}"
        for node in self.nodes:
            for _ in range(EMPTY_POLLS):
                answer = await self._claim(process, worker, 0, node=node, lease_s=5)
                if answer.type is not Type.OK or answer.out.task:
                    return False
        return True


def _now() -> float:
    """Return the seconds of the clients' clock, real or virtual."""
    return asyncio.get_running_loop().time()


def shard_of_key(key: str, shards: int) -> int:
    """Return the shard of a task with an idempotency key of the default tenant."""
    value = _FNV_OFFSET
    for byte in f"/{key}".encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return value % shards


def key_on(shard: int, stem: str, shards: int) -> str:
    """Return a key that begins with `stem` and belongs to a shard."""
    keys = (f"{stem}/{n}" for n in itertools.count())
    return next(key for key in keys if shard_of_key(key, shards) == shard)
