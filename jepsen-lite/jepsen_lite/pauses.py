"""Pauses: the admins who give keys limits of their own, pause them and resume them."""

from __future__ import annotations

import asyncio

from jepsen_lite.asking import Asker, Process
from jepsen_lite.clients import TRIES, Clients
from jepsen_lite.history import Args, F, Type
from jepsen_lite.keys import OWN, key_name

ADMINS = 2
EVERY_S = 1.5
LAST_S = (0.5, 2.5)


class Pauses(Clients):
    """The admins of a run's keys.

    A key belongs to one admin, so what is said of it has an order. A pause keeps the limits that
    the key has of its own.
    """

    def __init__(self, client: Asker, *, seed: int, command: str, keys: int) -> None:
        super().__init__(client, seed=seed)
        self._command = command
        self._keys = [key_name(n) for n in range(keys)]

    async def begin(self) -> bool:
        """Give keys limits of their own; return whether they have them."""
        process = Process("key-rules", self._seed)
        return all([await self._say(process, key, paused=False) for key in OWN])

    async def run(self, stop: asyncio.Event) -> None:
        """Pause and resume keys until `stop` is set."""
        self._stop = stop
        async with asyncio.TaskGroup() as admins:
            for n in range(ADMINS):
                admins.create_task(self._administer(n))

    async def end(self) -> bool:
        """Resume every key; return whether all are."""
        process = Process("key-resumes", self._seed)
        return all([await self._say(process, key, paused=False) for key in self._keys])

    async def _administer(self, n: int) -> None:
        process, keys = Process(f"key-admin-{n}", self._seed), self._keys[n::ADMINS]
        while not await self._paused(process.random.uniform(0.5, 1.5) * EVERY_S):
            key = process.random.choice(keys)
            await self._client.invoke(process, F.SET_KEY, self._args(key, paused=True))
            await self._paused(process.random.uniform(*LAST_S))
            await self._say(process, key, paused=False)

    async def _say(self, process: Process, key: str, *, paused: bool) -> bool:
        args = self._args(key, paused=paused)
        answer = await self._client.retried(process, F.SET_KEY, args, tries=TRIES)
        return answer.type is Type.OK

    def _args(self, key: str, *, paused: bool) -> Args:
        return Args(command=self._command, key=key, paused=paused)
