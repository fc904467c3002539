"""Nemesis: faults of processes, links and disks, drawn from a seed and verified."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from msgspec import Struct

from jepsen_lite.damage import Damage, damage
from jepsen_lite.db import START_WITHIN_S, Db, Node, soon_forgotten
from jepsen_lite.disk import DiskFault
from jepsen_lite.history import AND_CLIENTS, HELD, LOST
from jepsen_lite.network import NetworkFailed, Rules
from jepsen_lite.switch import Shape
from tests.harness.waiting import soon

_CUT = Shape(cut=True)
# Allowed after the start of a node: to begin a fetch of a snapshot, and to have it installed.
FETCHES_WITHIN_S = 20.0
INSTALLS_WITHIN_S = 45.0
# The longest absence. In this time even a log of a few large entries is truncated.
AWAY_S = 22.0
# A node is far behind once it lacks this multiple of the entries that a log may keep.
FORGOTTEN = 1.2
SLOW_SYNC_MS = 250
# Rules for nft: answer every packet in or out with a reset, and count it.
RESETS = """
table inet jl {
  chain input {
    type filter hook input priority 0;
    ip saddr != 127.0.0.0/8 meta l4proto tcp counter reject with tcp reset
  }
  chain output {
    type filter hook output priority 0;
    ip saddr != 127.0.0.0/8 meta l4proto tcp counter reject with tcp reset
  }
}
"""
FETCHING = '"fetching a snapshot"'
INSTALLED = '"snapshot installed"'


class PlannedFault(Struct, frozen=True, kw_only=True):
    """A fault as drawn from the seed: its targets, shape and duration.

    Attributes:
        hold_s: How long it lasts.
        amount_ms: The largest shift of a clock.
    """

    nodes: tuple[str, ...]
    detail: str = ""
    hold_s: float = 0.0
    amount_ms: int = 0


class Links:
    """Rules of several faults at once; a cut overrides the rest."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self._rules: dict[str, Rules] = {}

    async def set(self, fault: str, rules: Rules) -> None:
        """Put the rules of one fault in force; none to lift them."""
        self._rules[fault] = rules
        merged: dict[tuple[str, str], Shape] = {}
        for each in self._rules.values():
            for link, shape in each.items():
                if link not in merged or not merged[link].cut:
                    merged[link] = shape
        await self._db.network.shape(merged)

    async def struck(self, rules: Rules) -> int:
        """Return how many packets of these links were struck since the start."""
        counts = await self._db.network.struck()
        return sum(counts.get(link, 0) for link in rules)


class Nemesis(ABC):
    """One kind of fault.

    Attributes:
        name: Its name in the history and on the command line.
        target: The kind of thing it strikes. Faults with the same target never overlap.
        cuts: Whether it needs links that can be cut.
        moves_leaders: Whether it is expected to cause elections.
        needs_load: It only has an effect on a log that grows fast.
        needs_webhooks: It only has an effect on a workload with webhooks.
        lasts_s: The average duration of one fault, with the calm after it.
        may_be_last: Whether one fault can leave no target for another.
        settings: Nodes' settings without which it has no effect; a workload's own override them.
    """

    name: ClassVar[str]
    target: ClassVar[str]
    cuts: ClassVar[bool] = False
    moves_leaders: ClassVar[bool] = False
    needs_load: ClassVar[bool] = False
    needs_webhooks: ClassVar[bool] = False
    lasts_s: ClassVar[float] = 14.0
    may_be_last: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, object]] = {}

    def __init__(self, db: Db, links: Links) -> None:
        self.db = db
        self.links = links
        # How long a node fetched a snapshot because of its last fault.
        self.took_ms = 0

    @abstractmethod
    async def plan(self, rng: random.Random) -> PlannedFault:
        """Decide on targets and shape."""

    @abstractmethod
    async def begin(self, planned: PlannedFault) -> int:
        """Begin it; return how many targets were seen to be struck, or 0 if only `end` can tell."""

    @abstractmethod
    async def end(self, planned: PlannedFault) -> int:
        """Undo it; return how many targets were struck, or 0 if `begin` has told."""

    @property
    def left_to_restart(self) -> list[str]:
        """The nodes that `settle` restarts; that time is part of the fault."""
        return []

    async def settle(self) -> str:
        """Finish what other faults kept unfinished; return the remainder in words, or nothing."""
        return ""

    @property
    def names(self) -> list[str]:
        """Every node that is not out for good."""
        return self.db.serving

    async def one(self, rng: random.Random) -> str:
        """Return a node, half of the time one that leads a shard."""
        leader = await self.db.leader(rng.randrange(self.db.shards)) if rng.random() < 0.5 else None
        return leader or rng.choice(self.names)

    async def some(self, rng: random.Random, shapes: Sequence[str]) -> tuple[str, list[str]]:
        """Return a shape and its nodes."""
        shape = rng.choice(shapes)
        members = len(self.db.members)
        majority = members // 2 + 1
        match shape:
            case "one":
                return shape, [await self.one(rng)]
            case "minority":
                return shape, sorted(rng.sample(self.names, members - majority))
            case "majority":
                return shape, sorted(rng.sample(self.names, majority))
            case _:
                return shape, self.names

    async def back(self, names: Sequence[str]) -> None:
        """Start all nodes that do not run, and wait until they are ready."""
        for name in names:
            # A node that was removed meanwhile must not start again.
            if self.db.nodes[name].member and not self.db.nodes[name].running:
                self.db.start(name)
        # No node gets ready while its links are cut, so this wait may fail: the end of the run
        # checks.
        await soon(_Ready(self.db, names), within_s=START_WITHIN_S)


class _Ready:
    def __init__(self, db: Db, names: Sequence[str]) -> None:
        self._db = db
        self._names = names

    async def __call__(self) -> bool:
        self._db.supervise()
        members = [name for name in self._names if self._db.nodes[name].member]
        return all([await self._db.ready(name) for name in members])


class Kill(Nemesis):
    """SIGKILL, and a restart some time later."""

    name = "kill"
    target = "process"
    moves_leaders = True

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose one node, a majority or all."""
        shape, names = await self.some(rng, ("one", "one", "majority", "all"))
        return PlannedFault(nodes=tuple(names), detail=shape, hold_s=rng.uniform(0, 6))

    async def begin(self, planned: PlannedFault) -> int:
        """Kill them."""
        return sum(await asyncio.gather(*(self.db.kill(name) for name in planned.nodes)))

    async def end(self, planned: PlannedFault) -> int:
        """Start them again."""
        await self.back(planned.nodes)
        return 0


class Power(Nemesis):
    """A power cut: nodes die at one instant and lose all unsynced writes."""

    name = "power"
    target = "process"
    moves_leaders = True

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose one node or all."""
        shape, names = await self.some(rng, ("one", "all", "all"))
        return PlannedFault(nodes=tuple(names), detail=shape, hold_s=rng.uniform(0, 3))

    async def begin(self, planned: PlannedFault) -> int:
        """Cut it."""
        await self.db.cut_power(planned.nodes)
        return len(planned.nodes)

    async def end(self, planned: PlannedFault) -> int:
        """Start them again."""
        await self.back(planned.nodes)
        return 0


class Away(Nemesis):
    """A node stays away until its leader has truncated its log, so it must fetch a snapshot.

    Half of the time it is killed again while it fetches.
    """

    name = "away"
    target = "process"
    needs_load = True
    lasts_s = 40.0
    settings: ClassVar[Mapping[str, object]] = soon_forgotten()

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._twice = False

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose a node."""
        self._twice = rng.random() < 0.5
        detail = "killed again while it fetches" if self._twice else ""
        return PlannedFault(nodes=(await self.one(rng),), detail=detail)

    async def begin(self, planned: PlannedFault) -> int:
        """Kill it, and wait until it is far behind."""
        await self.kill_and_leave(planned.nodes[0])
        return 0

    async def kill_and_leave(self, name: str) -> None:
        """Kill a node, and leave it down until the other logs no longer have its next entry."""
        await self.db.kill(name)
        others = [other for other in self.names if other != name]
        begun = await self._applied(others)

        async def beyond() -> bool:
            now = await self._applied(others)
            gone = min(after - before for before, after in zip(begun, now, strict=True))
            return gone > FORGOTTEN * self.db.log_entries_max

        await soon(beyond, within_s=AWAY_S)

    async def _applied(self, names: Sequence[str]) -> list[int]:
        """Return the highest applied index of each shard on these nodes."""
        told = [await self.db.groups(name) for name in names]
        return [
            max([0, *(groups[shard].applied for groups in told if groups)])
            for shard in range(self.db.shards)
        ]

    async def end(self, planned: PlannedFault) -> int:
        """Start it, and verify by its log that it fetched and installed a shard's snapshot."""
        [name] = planned.nodes
        node = self.db.nodes[name]
        before = node.log_path.stat().st_size
        self.db.start(name)
        if self._twice and await soon(_Logged(node, before, FETCHING), within_s=FETCHES_WITHIN_S):
            await self.db.kill(name)
        await self.back([name])
        self.took_ms = _fetched_ms(node.logged_since(before))
        return int(self.took_ms > 0)


class Install(Away):
    """SIGKILL in the middle of a snapshot's installation, as seen on the fetching node's disk.

    fetch      A part of the snapshot is stored, beside the state it will replace.
    exchange   All of it is stored, and it is replacing the state.
    lender     As with fetch, but the serving leader dies. With two of three left the shard needs
               the fetching node, which must get the rest from the next leader.
    """

    name = "install"
    lasts_s = 60.0

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._moments: list[str] = []

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose a node and the moment."""
        self._moments = self._moments or rng.sample(["fetch", "exchange", "lender"], 3)
        name, moment = await self.one(rng), self._moments.pop()
        # The node that will serve the snapshot is not known yet.
        others = [other for other in self.names if other != name] if moment == "lender" else ()
        return PlannedFault(nodes=(name, *others), detail=moment)

    async def end(self, planned: PlannedFault) -> int:
        """Start the node, kill it at that moment, and start it for good."""
        name = planned.nodes[0]
        node = self.db.nodes[name]
        before = node.log_path.stat().st_size
        # A swap takes milliseconds; a slow disk makes it long enough to hit.
        node.disk.fault(DiskFault.SLOW, delay_ms=SLOW_SYNC_MS)
        self.db.start(name)
        mark = "shard-*.ready" if planned.detail == "exchange" else "shard-*.incoming"

        async def there() -> bool:
            return any(node.data_path.glob(mark)) and FETCHING in node.logged_since(before)

        await soon(there, within_s=INSTALLS_WITHIN_S)
        if planned.detail == "lender":
            return await self._without_lender(node, before)
        await self.db.kill(name)
        logged = node.logged_since(before)
        unfinished = logged.count(FETCHING) > logged.count(INSTALLED)
        caught = any(node.data_path.glob(mark)) and unfinished
        node.disk.fault(DiskFault.NONE)
        await self.back([name])
        return int(caught and await self.db.ready(name))

    async def _without_lender(self, node: Node, before: int) -> int:
        """Kill the node that serves a fetch, and restart it when the fetching node is done."""
        fetches = [line for line in node.logged_since(before).splitlines() if FETCHING in line]
        lender = str(json.loads(fetches[-1])["peer"]) if fetches else ""
        caught = bool(lender) and any(node.data_path.glob("shard-*.incoming"))
        if caught:
            await self.db.kill(lender)
        node.disk.fault(DiskFault.NONE)
        has_it = bool(await soon(_Ready(self.db, [node.id]), within_s=INSTALLS_WITHIN_S))
        await self.back([node.id, lender] if caught else [node.id])
        return int(caught and has_it)


def _fetched_ms(logged: str) -> int:
    """Return the duration of the longest completed fetch, 0 for none."""
    took = [json.loads(line) for line in logged.splitlines() if INSTALLED in line]
    return max((max(1, round(1000 * float(line["seconds"]))) for line in took), default=0)


class _Logged:
    """Return whether a node has logged something since."""

    def __init__(self, node: Node, since: int, text: str) -> None:
        self._node = node
        self._since = since
        self._text = text

    async def __call__(self) -> bool:
        return self._text in self._node.logged_since(self._since)


class Pause(Nemesis):
    """SIGSTOP: a node keeps its connections and answers nothing."""

    name = "pause"
    target = "process"
    moves_leaders = True

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose nodes, and a time shorter or longer than an election or a lease."""
        shape, names = await self.some(rng, ("one", "one", "minority", "majority"))
        hold_s = rng.choice((0.3, 1.5, 4.0, 9.0)) * rng.uniform(0.8, 1.2)
        return PlannedFault(nodes=tuple(names), detail=shape, hold_s=hold_s)

    async def begin(self, planned: PlannedFault) -> int:
        """Freeze them."""
        return await self.db.pause(*planned.nodes)

    async def end(self, planned: PlannedFault) -> int:
        """Resume them."""
        for name in planned.nodes:
            self.db.resume(name)
        return 0


class Restart(Nemesis):
    """A rolling restart: one node after another, without other faults."""

    name = "restart"
    target = "process"
    moves_leaders = True

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Decide on the order."""
        return PlannedFault(nodes=tuple(rng.sample(self.names, len(self.names))))

    async def begin(self, planned: PlannedFault) -> int:
        """Wait for the end of the restarts."""
        assert planned
        return 0

    async def end(self, planned: PlannedFault) -> int:
        """Stop each node with SIGTERM, start it and wait until it is back."""
        ended = 0
        for name in planned.nodes:
            ended += await self.db.end(name)
            await self.back([name])
        return ended


class OnLinks(Nemesis):
    """Faults of packets by the rules of a plan; the number of packets struck proves them."""

    target = "link"
    cuts = True

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._rules: Rules = {}
        self._before = 0

    async def begin(self, planned: PlannedFault) -> int:
        """Put the rules in force."""
        assert planned
        self._before = await self.links.struck(self._rules)
        await self.links.set(self.name, self._rules)
        return 0

    async def end(self, planned: PlannedFault) -> int:
        """Let packets pass unchanged."""
        struck = await self.links.struck(self._rules) - self._before
        await self.links.set(self.name, {})
        return len(planned.nodes) if struck else 0


class Partition(OnLinks):
    """Links that carry nothing: both ways, one way, around a bridge, or in a ring."""

    name = "partition"
    moves_leaders = True

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose a shape."""
        lonely = await self.one(rng)
        shape = rng.choice(("isolate", "halves", "deaf", "mute", "bridge", "ring"))
        self._rules = cuts(shape, self.names, lonely, rng)
        return PlannedFault(
            nodes=tuple(sorted({name for link in self._rules for name in link})),
            detail=f"{shape} {lonely}: {_told(self._rules)}",
            hold_s=rng.choice((1.0, 3.0, 6.0, 10.0)) * rng.uniform(0.8, 1.2),
        )


class Packets(OnLinks):
    """Packets that come late, twice, out of order, or never."""

    name = "packets"

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose the links of one node or of all, and those of the clients or not."""
        shape = rng.choice(
            (
                Shape(delay_ms=rng.choice((20, 100, 300)), jitter_ms=rng.choice((0, 20, 100))),
                Shape(loss=rng.choice((0.02, 0.1, 0.25))),
                Shape(dup=0.3, delay_ms=1, jitter_ms=10),
                Shape(stall=True),
            )
        )
        ends = [*self.names, "clients"] if rng.random() < 0.3 else self.names
        about = [await self.one(rng)] if rng.random() < 0.5 else self.names
        # Holding one direction is worse than holding both: one end still takes the other for alive.
        self._rules = {
            (a, b): shape
            for a in ends
            for b in ends
            if a != b and (a in about or (b in about and not shape.stall))
        }
        clients = AND_CLIENTS if "clients" in ends else ""
        return PlannedFault(
            nodes=tuple(about),
            detail=f"{_described(shape)}{clients}",
            hold_s=rng.uniform(2, 5 if shape.stall else 10),
        )


class Reset(Nemesis):
    """Every TCP connection of a node is reset, including those of clients."""

    name = "reset"
    target = "process"
    cuts = True

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose a node, for a moment."""
        return PlannedFault(nodes=(await self.one(rng),), hold_s=rng.uniform(0.2, 1.5))

    async def begin(self, planned: PlannedFault) -> int:
        """Answer every packet in or out with a reset."""
        await self._nft(planned.nodes[0], RESETS)
        return 0

    async def end(self, planned: PlannedFault) -> int:
        """Stop the resets; the counters show how many packets were answered with one."""
        [name] = planned.nodes
        listed = await self._nft(name, "list table inet jl")
        await self._nft(name, "delete table inet jl")
        counted = [word for line in listed.split("\n") for word in _counters(line)]
        return 1 if sum(counted) else 0

    async def _nft(self, name: str, script: str) -> str:
        command = self.db.network.inside(name, ["nft", script])
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NetworkFailed(f"nft: {done.stderr.strip()}")
        return done.stdout


# The share of faults of all disks that leave one out.
_SPARED = 0.5


class _DiskNemesis(Nemesis):
    target = "disk"
    fault: ClassVar[DiskFault]
    moves_leaders = False
    # The share of faults that strike all nodes at once, or all but one.
    everywhere: ClassVar[float] = 0.0

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._before: dict[str, int] = {}
        self._delay_ms = 0

    def delay_ms(self, rng: random.Random, *, everywhere: bool) -> int:
        """Return how much longer each sync shall take."""
        assert rng
        assert not everywhere
        return 0

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose one node, all but one, or all."""
        everywhere = rng.random() < self.everywhere
        self._delay_ms = self.delay_ms(rng, everywhere=everywhere)
        detail = f"{self._delay_ms} ms a sync" if self._delay_ms else ""
        hold_s = rng.uniform(1, 7)
        one = await self.one(rng)
        if not everywhere:
            names = [one]
        elif rng.random() < _SPARED:
            # A leader with a good disk commits as soon as a follower says that it holds the entry.
            names = [name for name in self.names if name != one]
        else:
            names = self.names
        return PlannedFault(nodes=tuple(names), detail=detail, hold_s=hold_s)

    async def begin(self, planned: PlannedFault) -> int:
        """Make their disks fail."""
        for name in planned.nodes:
            disk = self.db.nodes[name].disk
            self._before[name] = disk.struck
            disk.fault(self.fault, delay_ms=self._delay_ms)
        return 0

    async def end(self, planned: PlannedFault) -> int:
        """Mend the disks; start the nodes again that ended by themselves."""
        struck = 0
        for name in planned.nodes:
            disk = self.db.nodes[name].disk
            disk.fault(DiskFault.NONE)
            struck += disk.struck > self._before[name]
        # The fault that killed a node restarts it; only nodes that ended by themselves are started
        # here.
        await self.back([name for name in planned.nodes if self.db.nodes[name].gave_up])
        return struck


class DiskSlow(_DiskNemesis):
    """Every sync takes long, so that writes stay unsynced for a while."""

    name = "disk-slow"
    fault = DiskFault.SLOW
    everywhere = 0.3

    def delay_ms(self, rng: random.Random, *, everywhere: bool) -> int:
        """Return a delay below or above a heartbeat interval, or above an election timeout."""
        return rng.choice((30, 200) if everywhere else (30, 200, 1500))


class DiskFull(_DiskNemesis):
    """Writes and syncs are refused for lack of space."""

    name = "disk-full"
    fault = DiskFault.FULL


class DiskError(_DiskNemesis):
    """Writes and syncs fail."""

    name = "disk-error"
    fault = DiskFault.ERROR

    @property
    def left_to_restart(self) -> list[str]:
        """The nodes that wait for an operator to confirm that the disk is good."""
        return [name for name in self.names if self.db.nodes[name].waits_for_operator]

    async def settle(self) -> str:
        """Restart the nodes that wait, as the operator would."""
        waiting = self.left_to_restart
        for name in waiting:
            await self.db.end(name)
        await self.back(waiting)
        return ""


class Corrupt(Nemesis):
    """Corruption on the disk of a node that is down: flipped bits, a lost tail, a page of zeros.

    Only a minority of all nodes is damaged. A node that refuses to serve has contained the damage
    and stays out; one that serves must be as correct as any.
    """

    name = "corrupt"
    target = "process"
    moves_leaders = True
    may_be_last = True

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._damage: Damage | None = None

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose a node and the damage; nothing once a minority is damaged."""
        minority = (len(self.db.members) - 1) // 2
        damaged = [name for name in self.names if self.db.nodes[name].damaged]
        full = sum(self.db.nodes[name].damaged for name in self.db.members) >= minority
        names = damaged if full else self.names
        if not names:
            return PlannedFault(nodes=())
        name = rng.choice(names)
        kind = rng.choice(("flip", "flip", "truncate", "zero", "gone"))
        of = rng.choice(("*.sst", "*.log", "MANIFEST-*", "*"))
        if kind == "gone":
            # A deleted write-ahead log looks like one whose end was never synced, so no node could
            # notice.
            of = rng.choice(("*.sst", "CURRENT", "MANIFEST-*"))
        self._damage = Damage(kind=kind, of=of, draw=rng.random())
        detail = f"{self._damage.kind} {self._damage.of}"
        return PlannedFault(nodes=(name,), detail=detail, hold_s=rng.uniform(0, 4))

    async def begin(self, planned: PlannedFault) -> int:
        """Kill it and damage its disk."""
        if not planned.nodes or self._damage is None:
            return 0
        [name] = planned.nodes
        await self.db.kill(name)
        self.db.nodes[name].damaged = True
        return int(damage(self.db.nodes[name].data_path, self._damage))

    async def end(self, planned: PlannedFault) -> int:
        """Start it: it becomes ready, or it ends and logs the reason."""
        for name in planned.nodes:
            self.db.start(name)
            settled = _ReadyOrGone(self.db, name)
            await soon(settled, within_s=START_WITHIN_S)
            if not self.db.nodes[name].running:
                self.db.nodes[name].refused = True
                self.db.nodes[name].process = None
        return 0


class _ReadyOrGone:
    def __init__(self, db: Db, name: str) -> None:
        self._db = db
        self._name = name

    async def __call__(self) -> bool:
        return not self._db.nodes[self._name].running or await self._db.ready(self._name)


class Idle(Nemesis):
    """A fault without an effect: a run with only this one must be judged unknown."""

    name = "idle"
    target = "nothing"

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose a node."""
        return PlannedFault(nodes=(rng.choice(self.names),), hold_s=1)

    async def begin(self, planned: PlannedFault) -> int:
        """Do nothing."""
        assert planned
        return 0

    async def end(self, planned: PlannedFault) -> int:
        """Do nothing."""
        assert planned
        return 0


def cuts(
    shape: str, names: Sequence[str], lonely: str, rng: random.Random
) -> dict[tuple[str, str], Shape]:
    """Return the links a partition cuts, by its shape."""
    others = [name for name in names if name != lonely]
    match shape:
        case "isolate":
            pairs = [(lonely, other) for other in others] + [(other, lonely) for other in others]
        case "deaf":
            pairs = [(other, lonely) for other in others]
        case "mute":
            pairs = [(lonely, other) for other in others]
        case "halves":
            mixed = rng.sample(list(names), len(names))
            left, right = mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]
            pairs = [pair for a in left for b in right for pair in ((a, b), (b, a))]
        case "bridge":
            # Two halves that are connected only through one node.
            half = len(others) // 2
            left, right = others[:half], others[half:]
            pairs = [pair for a in left for b in right for pair in ((a, b), (b, a))]
        case _:
            # Every node hears a majority, and no two nodes hear the same one.
            ring = rng.sample(list(names), len(names))
            heard = len(ring) // 2
            pairs = [
                (ring[(n + step) % len(ring)], name)
                for n, name in enumerate(ring)
                for step in range(heard + 1, len(ring))
            ]
    return dict.fromkeys(pairs, _CUT)


def _told(rules: Rules) -> str:
    return " ".join(f"{source}>{target}" for source, target in sorted(rules))


def _described(shape: Shape) -> str:
    said = [
        f"{shape.delay_ms:g} ms late" if shape.delay_ms else "",
        f"up to {shape.jitter_ms:g} ms more" if shape.jitter_ms else "",
        f"{shape.loss:.0%}{LOST}" if shape.loss else "",
        f"{shape.dup:.0%} twice" if shape.dup else "",
        HELD if shape.stall else "",
    ]
    return ", ".join(filter(None, said))


def _counters(line: str) -> list[int]:
    """Return the packets an nft rule has counted."""
    words = line.split()
    return [int(after) for word, after in pairwise(words) if word == "packets"]
