"""Workload: clients, their operations and their rates, all drawn from the seed."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from jepsen_lite.asking import Answer, Asker, Process, content_of
from jepsen_lite.bulk import Bulk
from jepsen_lite.clients import PAUSE_S, Clients
from jepsen_lite.db import WORKERS_MAX, soon_forgotten
from jepsen_lite.graces import Graces
from jepsen_lite.graphs import Graphs
from jepsen_lite.groups import Groups
from jepsen_lite.history import Args, F, Follow, Out, Type
from jepsen_lite.keys import OF_QUEUE, key_name, limited_with, slowest
from jepsen_lite.operations import TERMINAL
from jepsen_lite.orders import Orders
from jepsen_lite.pauses import Pauses
from jepsen_lite.rejects import Rejects
from jepsen_lite.schedules import Schedules
from jepsen_lite.uniques import Uniques
from jepsen_lite.watching import Watching

COMMAND = "work"
# The broker's default, and so few that some tasks of a run use up their attempts.
ATTEMPTS_MAX = (2, 3, 5)
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


class Ways(Struct, frozen=True, kw_only=True):
    """The weights of a worker's possible actions on a task."""

    complete: float = 10
    fail: float = 0
    late: float = 0
    beat: float = 0
    abandon: float = 0
    nack: float = 0
    vanish: float = 0
    hold: float = 0


class Mix(Struct, frozen=True, kw_only=True):
    """A workload.

    Attributes:
        says: Its purpose.
        producers: Loops of creates; together they make `rate` per second.
        keyed: Share of creates with an idempotency key.
        repeated: Share of those that are sent twice at once, through two nodes.
        altered: Share of the repeated creates whose second copy has another content.
        delayed: Share of creates with a delay.
        webhooks: Share of creates with one.
        follows: Share of results that make tasks, half of these with an idempotency key.
        schedules: Edits and looks of each schedule per second; there are some if it is not 0.
        groups: Begun in a second.
        graphs: Made in a second, and tasks that wait for others.
        uniques: Creates with a unique key in a second.
        orders: Made in a second, and as many signals.
        bulk: Bulk jobs begun in a second, each about up to 180 tasks.
        watchers: So many follow the events of its tasks.
        graces: Tasks made in a second, and as many cancels with a grace.
        rejects: Tasks made in a second whose workers write logs, and reject some.
        command: Of its tasks; some have limits, see `keys`.
        keys: Every create has one of so many keys, of which one task is in progress at a time;
            some have limits of their own, and admins pause them.
        lease_s: The range of the leases that claims ask for.
        pads: Numbers of bytes added to payloads; each create draws one.
        cancels, reads, requeues: Operations per second on randomly chosen known tasks.
        notes: Signals per second to known tasks that have not ended; no function waits for them.
        settings: Added to every node's configuration.
        nemeses: Kinds of faults that it always has, beside the requested ones.
        shards_min: What a simulation must have, to show what the workload is for.
        ballast: How many tasks of 32 KiB exist from the start; no worker claims them.
        fetch_ms: The longest fetch of a snapshot by a node must take at least this long.
        proves: Guarantees that a run must be able to judge.
        ok: Acknowledged operations a run of a minute must have, by kind.
    """

    says: str
    proves: tuple[str, ...]
    ok: Mapping[str, int]
    producers: int = 6
    rate: float = 25
    workers: int = 12
    keyed: float = 0.5
    repeated: float = 0.1
    altered: float = 0.0
    delayed: float = 0.0
    webhooks: float = 0.0
    follows: float = 0.0
    schedules: float = 0.0
    groups: float = 0.0
    graphs: float = 0.0
    uniques: float = 0.0
    orders: float = 0.0
    bulk: float = 0.0
    graces: float = 0.0
    rejects: float = 0.0
    watchers: int = 0
    command: str = COMMAND
    keys: int = 0
    priorities: tuple[int, ...] = (0,)
    attempts_max: tuple[int, ...] = (0,)
    lease_s: tuple[int, int] = (3, 6)
    pads: tuple[int, ...] = (0, 40, 400)
    ways: Ways = Ways()
    cancels: float = 0.0
    reads: float = 2.0
    requeues: float = 0.0
    notes: float = 0.0
    shards: int = 2
    shards_min: int = 1
    settings: Mapping[str, object] = {}
    nemeses: tuple[str, ...] = ()
    ballast: int = 0
    fetch_ms: int = 0


_ALWAYS = ("G1", "G2", "G3", "G4", "G7", "G8", "G17", "G22")

WORKLOADS: dict[str, Mix] = {
    "lifecycle": Mix(
        says="everything a task can live through",
        proves=(*_ALWAYS, "G5", "G6", "G9", "G10", "G11", "G14", "G15", "G20"),
        ok={"create": 300, "claim": 300, "result": 150, "heartbeat": 50, "nack": 10, "abandon": 10},
        delayed=0.1,
        repeated=0.2,
        attempts_max=ATTEMPTS_MAX,
        ways=Ways(fail=1, late=1, beat=2, abandon=1, nack=1, vanish=0.5),
        cancels=0.5,
        requeues=0.2,
    ),
    "total-queue": Mix(
        says="unique payloads in, the same payloads out, once",
        proves=(*_ALWAYS, "G12", "G20"),
        ok={"create": 500, "claim": 400, "result": 400},
        rate=40,
        repeated=0.05,
    ),
    "lease": Mix(
        says="few tasks and many workers, some of them slow and none of them polite",
        proves=(*_ALWAYS, "G5", "G6", "G9", "G10", "G14"),
        ok={"create": 60, "claim": 150, "result": 50, "heartbeat": 80},
        rate=4,
        workers=20,
        lease_s=(1, 4),
        attempts_max=(20,),
        ways=Ways(complete=3, late=4, beat=3, abandon=1, vanish=2),
    ),
    "idempotent": Mix(
        says="the same key through all nodes at once, with the same body and with another",
        proves=_ALWAYS,
        ok={"create": 500, "claim": 200, "result": 200},
        rate=40,
        keyed=1.0,
        repeated=0.6,
        altered=0.3,
    ),
    "order": Mix(
        says="one shard, one queue, several priorities",
        proves=(*_ALWAYS, "G12", "G13"),
        ok={"create": 400, "claim": 300, "result": 300},
        rate=40,
        workers=4,
        priorities=(0, 0, 0, 4, 9),
        shards=1,
    ),
    "delay": Mix(
        says="tasks that are not due yet, and nacks that ask for patience",
        proves=(*_ALWAYS, "G11"),
        ok={"create": 200, "claim": 150, "result": 100, "nack": 30},
        rate=15,
        delayed=0.7,
        attempts_max=(6,),
        ways=Ways(complete=5, nack=5),
    ),
    "register": Mix(
        says="everybody at the same few tasks, and strong reads of them through all nodes",
        proves=(*_ALWAYS, "G15"),
        ok={"create": 60, "claim": 60, "read": 800},
        rate=5,
        workers=8,
        lease_s=(2, 3),
        attempts_max=(6,),
        ways=Ways(complete=4, late=2, beat=3, abandon=2, nack=2),
        cancels=1.0,
        reads=40.0,
    ),
    "heartbeats": Mix(
        says="long tasks held by heartbeats through everything, and others whose heartbeats write "
        "logs, and which are rejected",
        proves=(*_ALWAYS, "G14", "G40", "G41"),
        ok={"create": 40, "claim": 40, "heartbeat": 400, "beat": 60, "reject": 15, "log": 20},
        rejects=1.5,
        rate=3,
        workers=20,
        lease_s=(3, 5),
        ways=Ways(complete=1, beat=9),
    ),
    "dead-letters": Mix(
        says="tasks that use up their attempts, and an operator who gives them new ones",
        proves=(*_ALWAYS, "G10"),
        ok={"create": 150, "claim": 300, "requeue": 20},
        rate=12,
        attempts_max=(1, 2, 3),
        lease_s=(1, 2),
        ways=Ways(complete=2, nack=2, abandon=4, vanish=1),
        requeues=2.0,
    ),
    "webhooks": Mix(
        says="tasks whose end somebody waits for, at a sink that fails",
        proves=(*_ALWAYS, "G21"),
        ok={"create": 200, "claim": 200, "result": 150},
        rate=30,
        webhooks=0.7,
        # Leases this short do expire, so that another worker may replace a result that was not
        # committed.
        lease_s=(1, 2),
        settings={"leaseGraceSeconds": 0},
        ways=Ways(fail=2),
        cancels=0.5,
    ),
    "snapshots": Mix(
        says="a log that forgets soon, so that who was away must fetch the state, slowly",
        proves=_ALWAYS,
        ok={"create": 400, "claim": 300, "result": 300},
        rate=60,
        workers=16,
        repeated=0.2,
        pads=(0, 400, 3000),
        shards=1,
        settings=soon_forgotten(snapshotBytesPerSecond=2**17),
    ),
    "membership": Mix(
        says="unique payloads in and out, while nodes come, go and are replaced",
        proves=(*_ALWAYS, "G12", "G19", "G20"),
        ok={"create": 400, "claim": 300, "result": 300},
        rate=30,
        repeated=0.1,
        nemeses=("membership",),
    ),
    "big-state": Mix(
        says="a state that is fetched for longer than a leader may be silent, slow packets or not",
        proves=_ALWAYS,
        ok={"create": 400, "claim": 300, "result": 300},
        rate=60,
        workers=16,
        repeated=0.2,
        pads=(0, 400, 3000),
        shards=1,
        # 48 MB at 8 MiB per second take six seconds; an election timeout is one to two.
        ballast=1500,
        fetch_ms=4000,
        settings=soon_forgotten(snapshotBytesPerSecond=2**23),
        nemeses=("away", "packets"),
    ),
    "follow-ups": Mix(
        says="results that make tasks, on their own shard and on others, and these make more",
        proves=(*_ALWAYS, "G25"),
        ok={"create": 200, "claim": 400, "result": 300},
        # Each of these tasks is followed by three others, on average.
        rate=8,
        workers=16,
        keyed=0.2,
        follows=0.5,
        lease_s=(1, 3),
        # So many that a lost answer to a claim seldom makes a dead letter.
        attempts_max=(20,),
        ways=Ways(fail=1, late=1, beat=1, abandon=0.5, vanish=0.5),
        cancels=0.5,
        shards_min=2,
    ),
    "schedules": Mix(
        says="schedules of every overlap, edited under load, and both nights of changed clocks",
        proves=(*_ALWAYS, "G23", "G24"),
        ok={"create": 150, "claim": 150, "result": 100, "put-schedule": 30, "schedule": 30},
        rate=8,
        workers=8,
        schedules=0.4,
        shards_min=2,
    ),
    "groups": Mix(
        says="groups that are filled, sealed and worked off, with members on every shard",
        proves=(*_ALWAYS, "G27"),
        ok={"create": 150, "claim": 150, "result": 100, "begin-group": 25, "add-members": 30},
        rate=8,
        workers=8,
        groups=1.0,
        shards_min=2,
    ),
    "graphs": Mix(
        says="tasks that wait for others on every shard, some of which fail, die or are deleted",
        proves=(*_ALWAYS, "G26"),
        ok={"create": 150, "claim": 150, "result": 100, "make-graph": 20, "depend": 20},
        rate=8,
        workers=8,
        graphs=1.5,
        shards_min=2,
    ),
    "steps": Mix(
        says="functions of several steps that sleep and wait for signals, whose workers lose them",
        proves=(*_ALWAYS, "G37", "G38"),
        ok={"create": 150, "claim": 150, "result": 100, "record": 60, "park": 60, "signal": 30},
        rate=8,
        workers=8,
        orders=1.5,
        shards_min=2,
    ),
    "unique": Mix(
        says="a few unique keys that many create at once, and workers that lose their tasks",
        proves=(*_ALWAYS, "G32", "G33", "G34"),
        ok={"create": 150, "claim": 150, "result": 100, "merge": 300, "take": 60, "finish": 50},
        rate=8,
        workers=8,
        uniques=16.0,
        shards_min=2,
    ),
    "lanes": Mix(
        says="tasks of a few keys, one of each at a time, in order and at their rate; workers that "
        "lose them or hold their keys, admins who pause keys and give them limits, and signals",
        proves=(*_ALWAYS, "G5", "G28", "G29", "G30"),
        ok={"create": 150, "claim": 150, "result": 80, "nack": 10, "set-key": 20, "signal": 40},
        rate=12,
        workers=16,
        repeated=0.2,
        keys=8,
        lease_s=(2, 3),
        # So many that a task seldom dies of its attempts, which lets the next one go.
        attempts_max=(200,),
        ways=Ways(complete=8, fail=1, late=1, beat=1, abandon=1, nack=0.5, vanish=0.5, hold=2),
        cancels=0.2,
        notes=6.0,
        shards_min=2,
    ),
    "limits": Mix(
        says="tasks of a queue that may have a few in progress and has a rate, on one shard; "
        "workers that lose them or hold the queue",
        proves=(*_ALWAYS, "G5", "G28", "G30"),
        ok={"create": 100, "claim": 80, "result": 50, "nack": 5},
        rate=5,
        workers=16,
        repeated=0.2,
        command="limited",
        lease_s=(2, 3),
        attempts_max=(200,),
        ways=Ways(complete=8, fail=1, late=1, beat=1, abandon=1, nack=0.5, vanish=0.5, hold=1),
        cancels=0.2,
        shards_min=2,
    ),
    "quotas": Mix(
        says="tasks of two queues that share a limit: a few of both in progress, and one rate; "
        "workers that lose them or hold the limit",
        proves=(*_ALWAYS, "G5", "G28", "G30"),
        ok={"create": 100, "claim": 80, "result": 50, "nack": 5},
        rate=5,
        workers=16,
        repeated=0.2,
        command="charge",
        lease_s=(2, 3),
        attempts_max=(200,),
        ways=Ways(complete=8, fail=1, late=1, beat=1, abandon=1, nack=0.5, vanish=0.5, hold=1),
        cancels=0.2,
        shards_min=2,
    ),
    "bulk": Mix(
        says="bulk jobs by tag and over all tasks, with creates before, during and after each",
        proves=(*_ALWAYS, "G39"),
        ok={"create": 150, "claim": 150, "result": 100, "sow": 300, "sweep": 5},
        rate=8,
        workers=8,
        bulk=0.3,
        shards_min=2,
    ),
    "graces": Mix(
        says="cancels that leave workers time, of whom some heed them and some go on, or vanish",
        proves=(*_ALWAYS, "G36"),
        ok={"create": 150, "claim": 150, "result": 100, "offer": 60, "beat": 100, "stop": 40},
        rate=8,
        workers=8,
        graces=3.0,
        shards_min=2,
    ),
    "events": Mix(
        says="watchers of everything a task can live through, who go on at another node each time",
        proves=(*_ALWAYS, "G35"),
        ok={"create": 150, "claim": 150, "result": 100, "cancel": 10, "watch": 100},
        rate=15,
        repeated=0.1,
        attempts_max=ATTEMPTS_MAX,
        lease_s=(1, 3),
        ways=Ways(fail=1, late=1, beat=1, abandon=1, nack=1, vanish=0.5),
        cancels=0.5,
        watchers=3,
        shards_min=2,
    ),
    "recovery": Mix(
        says="a writer for every shard at every node, and how long it waits",
        proves=(*_ALWAYS, "G20"),
        ok={"create": 300, "claim": 200, "result": 200},
        rate=10,
        shards=4,
    ),
}


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


def minimum_ok(mix: Mix, *, seconds: float, kinds: Sequence[str] = ()) -> dict[str, int]:
    """Return how many acknowledged operations a run of this length must have."""
    share = seconds / 60
    return {f: max(1, int(least * share)) for f, least in mix.ok.items() if not kinds or f in kinds}
