"""Mixes: what each workload does, how often, and the guarantees that a run of it must judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from jepsen_lite.db import soon_forgotten

COMMAND = "work"
# The broker's default, and so few that some tasks of a run use up their attempts.
ATTEMPTS_MAX = (2, 3, 5)


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
        cancels=2.0,
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


def minimum_ok(mix: Mix, *, seconds: float, kinds: Sequence[str] = ()) -> dict[str, int]:
    """Return how many acknowledged operations a run of this length must have."""
    share = seconds / 60
    return {f: max(1, int(least * share)) for f, least in mix.ok.items() if not kinds or f in kinds}
