"""Orders: the clients that work on tasks by durable steps, lose them, and send them signals."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from jepsen_lite.asking import Process, content_of
from jepsen_lite.clients import LEASE_S, TRIES, OfOneQueue
from jepsen_lite.history import Args, F, Out, Type

ORDER_COMMAND = "order"
WORKERS = 6
SIGNALS = ("go", "stop")
# What the function of an order does, one after the other: steps, and waits for a signal or time.
COURSE = ("charge", "go", "pack", "nap", "send", "stop")
WAITS_MS = {"go": (1000, 2000), "nap": (1000,), "stop": (0, 1000, 2000)}
RECENT = 30  # As many orders were made last as may get a signal.


class Orders(OfOneQueue):
    """The clients of a run's orders."""

    queue = ORDER_COMMAND
    offer = F.ORDER
    producers = 3

    async def run(self, stop: asyncio.Event) -> None:
        """Order and signal until `stop` is set, and let workers go on beside."""
        self._stop = stop
        async with asyncio.TaskGroup() as clients:
            for n in range(self.producers):
                clients.create_task(self._produce(Process(f"orderer-{n}", self._seed)))
                clients.create_task(self._signal(n))
            for n in range(WORKERS):
                clients.create_task(self._work("order-worker", n, (0.0, 0.0, 0.1, 0.5, 3.0)))

    async def end(self, *, within_s: float) -> bool:
        """Work off all orders; return whether that succeeded."""
        ended = await self._ended(Process("order-drainer", self._seed), within_s=within_s)
        if ended is None:
            return False
        self._ids = [each.task for each in ended]
        return True

    async def read_all(self, *, silent_s: float) -> bool:
        """Read the steps of every order at rest; return whether all were answered."""
        process = Process("order-reader", self._seed)
        tries = max(2, int(silent_s))
        for task in self._ids:
            args = Args(command=ORDER_COMMAND, task=task, final=True)
            answer = await self._client.retried(process, F.STEPS, args, tries=tries)
            if answer.type is not Type.OK:
                return False
        return True

    async def _signal(self, n: int) -> None:
        process = Process(f"signaller-{n}", self._seed)
        rng = process.random
        while not await self._paused(rng.uniform(0.5, 1.5) * self.producers / self._rate):
            if not self._ids:
                continue
            number = next(self._numbers)
            args = Args(
                task=rng.choice(self._ids[-RECENT:]),
                name=rng.choice(SIGNALS),
                content=content_of({"signal": number}),
            )
            if rng.random() < 0.5:
                await self._client.invoke(process, F.SIGNAL, args)
                continue
            await self._client.retried(
                process, F.SIGNAL, replace(args, idempotency_key=f"signal {number}"), tries=TRIES
            )

    async def _worked_off(self, process: Process, worker: str, *, wait_s: float) -> bool:
        """Claim an order and go on with it, or lose it; return whether there was one."""
        claim = Args(command=ORDER_COMMAND, lease_ms=1000 * LEASE_S)
        taken = await self._client.invoke(process, F.BEGIN, claim, worker=worker)
        if taken.type is not Type.OK or not taken.out.task:
            return False
        known = {step.name: step for step in taken.out.steps}
        for name in COURSE:
            if name in known and not known[name].open:
                continue
            # The longest pause loses the lease: what is recorded then must be refused.
            await self._paused(wait_s)
            drawn = process.random.random()
            if drawn < 0.1:
                return True  # Its lease brings it back.
            goes_on = await self._stepped(process, worker, taken.out, name, again=drawn < 0.6)
            if not goes_on:
                return True
        held = Args(task=taken.out.task, token=taken.out.token, status="COMPLETED", content="{}")
        await self._client.invoke(process, F.CLOSE, held, worker=worker)
        return True

    async def _stepped(
        self, process: Process, worker: str, taken: Out, name: str, *, again: bool
    ) -> bool:
        """Record a step or begin a wait; return whether the lease goes on after it."""
        f, waits_ms = F.RECORD, WAITS_MS.get(name)
        args = Args(task=taken.task, token=taken.token, name=name, lease_ms=1000 * LEASE_S)
        if waits_ms is None:
            content = content_of({"task": taken.task, "step": name, "token": taken.token})
            args = replace(args, content=content)
        else:
            f, signal = F.PARK, name if name in SIGNALS else ""
            args = replace(args, signal=signal, delay_ms=process.random.choice(waits_ms))
        tries = TRIES // 10 if again else 1
        answer = await self._client.retried(process, f, args, tries=tries, worker=worker)
        return answer.type is Type.OK and not open_in(answer.out)


def open_in(out: Out) -> bool:
    """Return whether an answer shows a wait that is not over."""
    return any(step.open for step in out.steps)
