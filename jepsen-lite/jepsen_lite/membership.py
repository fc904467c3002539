"""Membership: faults that change the cluster's members, or delete a node's data.

Operators' actions are done with operators' commands. They share their target with faults that stop
processes, so they take turns with those, and kill nodes on their own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from jepsen_lite.db import Db
from jepsen_lite.nemesis import Links, Nemesis, PlannedFault
from jepsen_lite.switch import Shape
from tests.harness.waiting import soon

# The number of members at the start; the cluster never has fewer.
MEMBERS_MIN = 3
# In this time a node starts, catches up and becomes a voter, under load and over links that may be
# cut.
CHANGES_WITHIN_S = 30.0
SETTLES_WITHIN_S = 90.0
ASKED_AGAIN_AFTER_S = 0.5
# A change that is not done after this long may wait for a node that waits for its operator.
RESTARTS_AFTER_S = 10.0
# The delay of a leader's packets while two nodes join. Packets under way when the partition begins
# are lost.
TEARS_WITHIN_MS = 800
LET_IN_S = 3.0
# Long enough for an election on the other side, and for writes on both.
TORN_S = 5.0
_CUT = Shape(cut=True)


class Change(Struct, frozen=True, kw_only=True):
    """A planned change by an operator.

    Attributes:
        comes, goes: Nodes, or empty.
        too: A second node that joins, or empty.
        dies: Killed during the change and started again; or empty.
        stopped_s: After this long the command is interrupted and repeated; 0 for never.
    """

    kind: str
    comes: str = ""
    goes: str = ""
    too: str = ""
    shard: int = 0
    dies: str = ""
    stopped_s: float = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that may be silent meanwhile."""
        return tuple(sorted({self.comes, self.too, self.goes, self.dies} - {""}))

    def __str__(self) -> str:
        """Return the change in words."""
        words = {
            "join": f"{self.comes} comes",
            "remove": f"{self.goes} goes",
            "replace": f"{self.comes} comes for {self.goes}",
            "transfer": f"shard {self.shard} to {self.comes or 'anybody'}",
            "torn": f"{self.comes} and {self.too} come while {self.goes} leads alone",
        }
        dies = f", {self.dies} dies meanwhile" if self.dies else ""
        stopped = ", interrupted" if self.stopped_s else ""
        return words[self.kind] + dies + stopped


class _Operator:
    """Carries changes out, repeating commands as often as necessary.

    Args:
        db: The cluster.
        restarts_after_s: After this long, nodes of the change whose replicas were given up are
            restarted.
    """

    def __init__(self, db: Db, *, restarts_after_s: float = RESTARTS_AFTER_S) -> None:
        self._db = db
        self._restarts_after_s = restarts_after_s
        self.open: Change | None = None

    @property
    def waiting(self) -> list[str]:
        """The nodes of the open change that wait for an operator, and whose disks are good."""
        nodes = [self._db.nodes[name] for name in (self.open.nodes if self.open else ())]
        return [each.id for each in nodes if each.waits_for_operator and not each.disk.refuses]

    async def carry_out(self, change: Change, *, within_s: float) -> bool:
        """Repeat a command until it is done; return whether the cluster confirms it."""
        db = self._db
        begun = time.monotonic()
        deadline = begun + within_s
        self.open = change
        if change.comes in db.spares and change.kind != "transfer":
            db.admit(change.comes)
        if change.comes and not db.nodes[change.comes].running:
            db.start(change.comes)
        interrupted = not change.stopped_s
        tries = 0
        while (left_s := deadline - time.monotonic()) > 0:
            most_s = left_s if interrupted else min(left_s, change.stopped_s)
            interrupted = True
            done, _ = await self._ask(change, tries, within_s=most_s)
            tries += 1
            if done and await self._is_so(change, within_s=deadline - time.monotonic()):
                self.open = None
                if change.goes:
                    await db.dismiss(change.goes)
                return True
            db.supervise()
            if time.monotonic() - begun >= self._restarts_after_s:
                await self._restart_waiting()
            await asyncio.sleep(ASKED_AGAIN_AFTER_S)
        return False

    async def _restart_waiting(self) -> None:
        for name in self.waiting:
            await self._db.end(name)
            self._db.start(name)

    async def _ask(self, change: Change, tries: int, *, within_s: float) -> tuple[bool, str]:
        db = self._db
        # The node being removed cannot run its own removal, so another one is asked.
        among = [name for name in db.serving if name not in (change.goes, change.comes)]
        among = [name for name in among if db.nodes[name].answering]
        if not among:
            return False, "nobody to ask"
        # Another one each time: a node whose replica is out knows no leader.
        first = random.Random(f"{change}{len(among)}").randrange(len(among))
        asked = [among[(first + tries) % len(among)]]
        verb = change.kind
        if verb == "transfer":
            to = ("--to", change.comes) if change.comes else ()
            words = ["--shard", str(change.shard), *to]
        elif verb == "remove":
            words = [change.goes]
        else:
            node = db.nodes[change.comes]
            words = [change.goes] if verb == "replace" else []
            words += [change.comes, "--addr", db.link(node.id), "--http", db.urls[node.id]]
            words += ["--wait", str(max(1, round(within_s)))]
        return await db.command("cluster", verb, *words, among=asked, within_s=within_s)

    async def _is_so(self, change: Change, *, within_s: float) -> bool:
        if change.kind == "transfer":
            return True
        wanted = [name for name in self._db.members if name != change.goes]

        async def agreed() -> bool:
            self._db.supervise()
            return await self._db.vote(wanted)

        return bool(await soon(agreed, within_s=min(10.0, max(0.0, within_s))))


class Membership(Nemesis):
    """An operator's commands add, remove and replace nodes, and transfer leaderships.

    Now and then the command is interrupted, or a node dies during it: a leader or the joining node.
    A change that is not done in time is resumed the next time.
    """

    name = "membership"
    target = "process"
    moves_leaders = True
    lasts_s = 45.0

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._operator = _Operator(db)
        self._change = Change(kind="transfer")
        self._kinds: list[str] = []

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose a possible change; every kind has its turn before one has two."""
        if self._operator.open is not None:
            self._change = self._operator.open
        else:
            self._change = await self._draw(rng)
        return PlannedFault(nodes=self._change.nodes, detail=str(self._change))

    async def _draw(self, rng: random.Random) -> Change:
        members, spares = self.names, self.db.spares
        if not self._kinds:
            # A torn join comes first, because it needs the three original members.
            self._kinds = ["torn", *rng.sample(["replace", "join", "remove", "transfer"], 4)]
        possible = [
            kind
            for kind in self._kinds
            if (spares or kind in ("remove", "transfer"))
            and (len(members) > MEMBERS_MIN or kind != "remove")
            and (self._may_tear() or kind != "torn")
        ]
        kind = possible[0] if possible else "transfer"
        if kind in self._kinds:
            self._kinds.remove(kind)
        leader = await self.one(rng)
        if kind == "torn":
            leads = await self.db.leader(0) or leader
            return Change(kind=kind, comes=spares[0], too=spares[1], goes=leads)
        stopped_s = rng.uniform(0.5, 4) if rng.random() < 0.2 else 0
        if kind == "transfer":
            shard = rng.randrange(self.db.shards)
            return Change(kind=kind, shard=shard, comes=rng.choice(members))
        comes = rng.choice(spares) if kind != "remove" else ""
        goes = leader if kind != "join" else ""
        mortal = sorted({*members, comes} - {goes, ""})
        dies = rng.choice(mortal) if rng.random() < 0.4 else ""
        return Change(kind=kind, comes=comes, goes=goes, dies=dies, stopped_s=stopped_s)

    def _may_tear(self) -> bool:
        every = (len(self.db.spares), len(self.names), self.db.network.cuttable)
        return every == (2, MEMBERS_MIN, True)

    async def begin(self, planned: PlannedFault) -> int:
        """Carry it out."""
        assert planned
        change = self._change
        if change.kind == "torn":
            return await self._tear(change)
        async with asyncio.TaskGroup() as both:
            done = both.create_task(self._operator.carry_out(change, within_s=CHANGES_WITHIN_S))
            if change.dies:
                both.create_task(self._die(change.dies, done))
        return len(change.nodes) or 1 if done.result() else 0

    async def _tear(self, change: Change) -> int:
        """Add two nodes, and cut them and the leader off from the others once one of them may vote.

        If both became voters at once, the leader would have a majority of the five new members, and
        the others one of the three old members.
        """
        db, leader = self.db, change.goes
        comers = [change.comes, change.too]
        others = [name for name in self.names if name != leader]
        await self.links.set(self.name, _between([leader], comers, _CUT))
        for name in comers:
            db.admit(name)
            db.start(name)
            await soon(self._let_in(name, others), within_s=CHANGES_WITHIN_S)
        await soon(self._answer(comers), within_s=CHANGES_WITHIN_S)
        # The two need time to register and to have that committed.
        await asyncio.sleep(LET_IN_S)
        late = Shape(delay_ms=TEARS_WITHIN_MS)
        await self.links.set(self.name, {(leader, other): late for other in others})

        async def promoted() -> bool:
            groups = await db.memberships(leader)
            return any(group.leads and set(comers) & set(group.voters) for group in groups or ())

        seen = await soon(promoted, within_s=CHANGES_WITHIN_S)
        await self.links.set(self.name, _between([leader, *comers], others, _CUT))
        await asyncio.sleep(TORN_S)
        await self.links.set(self.name, {})
        self._operator.open = Change(kind="join", comes=change.comes)
        if await soon(_AllVote(db), within_s=CHANGES_WITHIN_S):
            self._operator.open = None
        return len(change.nodes) if seen else 0

    def _let_in(self, name: str, asked: Sequence[str]) -> Callable[[], Awaitable[bool]]:
        """Return a function that asks for a join; during another change it may be refused."""
        db = self.db
        words = ["join", name, "--addr", db.link(name), "--http", db.urls[name], "--wait", "0"]

        async def let_in() -> bool:
            done, _ = await db.command("cluster", *words, among=asked, within_s=CHANGES_WITHIN_S)
            return done

        return let_in

    def _answer(self, names: list[str]) -> Callable[[], Awaitable[bool]]:
        async def answer() -> bool:
            return all([await self.db.memberships(name) for name in names])

        return answer

    async def _die(self, name: str, done: asyncio.Task[bool]) -> None:
        await asyncio.wait({done}, timeout=2)
        if self.db.nodes[name].running:
            await self.db.kill(name)
        await asyncio.wait({done}, timeout=2)
        if self.db.nodes[name].member and not self.db.nodes[name].running:
            self.db.start(name)

    async def end(self, planned: PlannedFault) -> int:
        """Wait until killed nodes are back."""
        self.db.supervise()
        await self.back([name for name in planned.nodes if name in self.db.members])
        return 0

    @property
    def left_to_restart(self) -> list[str]:
        """The nodes that keep the open change from its end until they are restarted."""
        return self._operator.waiting

    async def settle(self) -> str:
        """Finish the change in progress, now that no fault disturbs it."""
        change = self._operator.open
        if change is None:
            return ""
        done = await self._operator.carry_out(change, within_s=SETTLES_WITHIN_S)
        return "" if done else f"not done in {SETTLES_WITHIN_S:g} s: {change}"


class _AllVote:
    """Whether every member votes in every shard; a node that ended by itself is not waited for."""

    def __init__(self, db: Db) -> None:
        self._db = db

    async def __call__(self) -> bool:
        self._db.supervise()
        return await self._db.vote(self._db.members)


def _between(
    some: Sequence[str], others: Sequence[str], shape: Shape
) -> dict[tuple[str, str], Shape]:
    return {link: shape for a in some for b in others for link in ((a, b), (b, a))}


class Wipe(Nemesis):
    """A node loses its disk.

    lost       It starts again under its name with an empty disk, and rejoins by itself.
    replaced   It stays away, and an operator replaces it by another node.
    forgetful  It has acknowledged entries that only one other node has, and that one is dead too.
               The remaining nodes must not elect a leader before that one is back.

    No node loses a disk before all others vote again: the promises only cover a minority.
    """

    name = "wipe"
    target = "process"
    moves_leaders = True
    lasts_s = 45.0

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._operator = _Operator(db)
        self._change = Change(kind="replace")
        self._leader = ""
        self._shapes: list[str] = []

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose a node and its fate."""
        if self._operator.open is not None:
            return PlannedFault(nodes=self._operator.open.nodes, detail=str(self._operator.open))
        damaged = [name for name in self.db.members if self.db.nodes[name].damaged]
        if not (damaged or await self.db.vote(self.db.members)):
            return PlannedFault(nodes=())
        if not self._shapes:
            self._shapes = [*rng.sample(["lost", "replaced"], 2), "forgetful"]
        shape = self._shapes.pop()
        lost = damaged[0] if damaged else await self.one(rng)
        leader = await self.db.leader(0)
        if shape == "forgetful" and leader and not damaged and self.db.network.cuttable:
            others = [name for name in self.names if name != leader]
            self._leader = leader
            forgets = rng.sample(others, len(others) // 2)
            nodes = tuple(sorted([leader, *forgets]))
            return PlannedFault(nodes=nodes, detail=shape, hold_s=rng.uniform(5, 8))
        if shape == "replaced" and self.db.spares:
            self._change = Change(kind="replace", comes=rng.choice(self.db.spares), goes=lost)
            return PlannedFault(nodes=self._change.nodes, detail=shape)
        return PlannedFault(nodes=(lost,), detail="lost", hold_s=rng.uniform(0, 3))

    async def begin(self, planned: PlannedFault) -> int:
        """Delete the data."""
        match planned.detail:
            case "lost":
                await self._lose(planned.nodes[0])
            case "replaced":
                await self._lose(self._change.goes)
                await self._operator.carry_out(self._change, within_s=CHANGES_WITHIN_S)
            case "forgetful":
                await self._forget([name for name in planned.nodes if name != self._leader])
            case _ if self._operator.open is not None:
                await self._operator.carry_out(self._operator.open, within_s=CHANGES_WITHIN_S)
        return 0

    async def _lose(self, name: str) -> None:
        if self.db.nodes[name].running:
            await self.db.kill(name)
        self.db.wipe(name)

    async def _forget(self, names: list[str]) -> None:
        """Let only these nodes store the leader's commits, then kill both and delete their data."""
        hold = [self._leader, *names]
        lag = [name for name in self.names if name not in hold]
        await self.links.set(self.name, _between(hold, lag, _CUT))
        await asyncio.sleep(1.5)
        await self.db.pause(*hold)
        for name in hold:
            await self.db.kill(name)
        for name in names:
            self.db.wipe(name)
            self.db.start(name)
        await self.links.set(self.name, {})

    async def end(self, planned: PlannedFault) -> int:
        """Start all nodes that are down, and wait until everybody votes again."""
        self.db.supervise()
        await self.back([name for name in planned.nodes if name in self.db.members])
        voted = await soon(_AllVote(self.db), within_s=CHANGES_WITHIN_S)
        return len(planned.nodes) if voted else 0

    @property
    def left_to_restart(self) -> list[str]:
        """The nodes that keep the open change from its end until they are restarted."""
        return self._operator.waiting

    async def settle(self) -> str:
        """Wait until everybody votes, now that no fault disturbs it."""
        if self._operator.open is not None:
            await self._operator.carry_out(self._operator.open, within_s=SETTLES_WITHIN_S)
        if await soon(_AllVote(self.db), within_s=SETTLES_WITHIN_S):
            return ""
        return f"not everybody votes after {SETTLES_WITHIN_S:g} s in calm"
