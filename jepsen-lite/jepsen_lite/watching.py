"""Watching: the clients that follow the events of a run's tasks, from node to node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from jepsen_lite.asking import Answer, Asker, Process
from jepsen_lite.clients import PAUSE_S, WorkedOff
from jepsen_lite.history import Args, F, Type

WATCHED = "work"  # The command of a run's own tasks.
WAIT_MS = 1000
# A node whose log is short may have forgotten what another one has still.
EXPIRED_TRIES = 5


class Watching(WorkedOff):
    """The watchers of a run: each page comes from any node, after the cursor of the one before."""

    def __init__(self, client: Asker, *, seed: int, rate: float) -> None:
        super().__init__(client, seed=seed, rate=rate)
        self._watchers = [
            _Watcher(client, Process(f"watcher-{n}", seed)) for n in range(round(rate))
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until `stop` is set."""
        async with asyncio.TaskGroup() as clients:
            for watcher in self._watchers:
                clients.create_task(watcher.follow(stop))

    async def end(self, *, within_s: float) -> bool:
        """Do nothing: watchers leave nothing to be worked off."""
        del within_s
        return True

    async def read_all(self, *, silent_s: float) -> bool:
        """Let every watcher read to the end; return whether all have come there."""
        found = await asyncio.gather(
            *(watcher.come_to_the_end(within_s=silent_s) for watcher in self._watchers)
        )
        return all(found)

    async def _worked_off(self, process: Process, worker: str, *, wait_s: float) -> bool:
        del process, worker, wait_s
        return False


class _Watcher:
    """One watcher, and its cursor; empty before the first one, and after one that has expired."""

    def __init__(self, client: Asker, process: Process) -> None:
        self._client = client
        self._process = process
        self._after = ""
        self._expired = 0

    async def follow(self, stop: asyncio.Event) -> None:
        """Ask for page after page until `stop` is set."""
        while not stop.is_set():
            nodes = self._client.nodes
            if await self._page(nodes, wait_ms=WAIT_MS) is None:
                await asyncio.sleep(PAUSE_S)

    async def come_to_the_end(self, *, within_s: float) -> bool:
        """Ask until no node has anything more; return whether it came so far in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        for node in self._client.nodes:
            before: str | None = None
            while before != self._after or not before:
                if loop.time() > until:
                    return False
                before = self._after
                answer = await self._page([node], wait_ms=0)
                if answer is None:
                    before = None
                    await asyncio.sleep(PAUSE_S)
        args = Args(command=WATCHED, name=self._process.name, after=self._after, final=True)
        answer = await self._client.retried(self._process, F.WATCH, args, tries=int(within_s))
        return answer.type is Type.OK

    async def _page(self, nodes: Sequence[str], *, wait_ms: int) -> Answer | None:
        """Ask one of the nodes for what follows; return None if it has not told."""
        args = Args(command=WATCHED, name=self._process.name, after=self._after)
        args = replace(args, wait_ms=wait_ms if self._after else 0)
        node = self._process.random.choice(nodes)
        answer = await self._client.invoke(self._process, F.WATCH, args, node=node)
        if answer.type is Type.OK:
            self._after, self._expired = answer.out.cursor, 0
            return answer
        self._expired += answer.out.code == "cursor-expired"
        if self._expired >= EXPIRED_TRIES:
            self._after, self._expired = "", 0
        return None
