"""Taskiq's broadcasts: its own receivers in this process, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest
from taskiq import SendTaskError
from taskiq.receiver import Receiver
from taskiq.serializers import PickleSerializer

from codeq_cluster.client import Refused
from codeq_cluster.integrations.taskiq import CodeqPubSubBroker

WITHIN_S: Final = 30.0


class Worker:
    """A worker that notes what it gets."""

    def __init__(self, url: str, channel: str) -> None:
        self.broker = CodeqPubSubBroker(url, queue_name=channel)
        self.listens = asyncio.Event()
        self._got: asyncio.Queue[object] = asyncio.Queue()

        @self.broker.task(task_name="note")
        async def note(value: object) -> None:
            if value == "begin":
                self.listens.set()
            else:
                await self._got.put(value)

        self.note = note

    async def got(self, count: int) -> list[object]:
        """Return so many values, in the order of their coming, once they are there."""
        async with asyncio.timeout(WITHIN_S):
            return [await self._got.get() for _ in range(count)]

    @property
    def is_done(self) -> bool:
        """Whether it has got nothing else."""
        return self._got.empty()


@asynccontextmanager
async def listening(*workers: Worker) -> AsyncIterator[None]:
    """Run the receivers of workers within the block, once all of them hear what is said."""
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for each in workers:
            each.broker.is_worker_process = True
            receiver = Receiver(each.broker, executor=threads, max_async_tasks=1)
            group.create_task(receiver.listen(stop))
        try:
            async with asyncio.timeout(WITHIN_S):
                while not all(each.listens.is_set() for each in workers):
                    await workers[0].note.kiq("begin")
            yield
        finally:
            stop.set()
    for each in workers:
        await each.broker.shutdown()


async def test_each_worker_gets_each_message_once_in_one_order(url: str) -> None:
    """Three that send at once are heard by both workers, in the same order."""
    first, second = Worker(url, "b-all"), Worker(url, "b-all")
    sender = Worker(url, "b-all")
    async with listening(first, second):
        await asyncio.gather(
            *(
                each.note.kiq(f"{n}{m}")
                for n, each in enumerate((first, second, sender))
                for m in "ab"
            )
        )
        got, also = await first.got(6), await second.got(6)

    assert {"0a", "0b", "1a", "1b", "2a", "2b"} == set(map(str, got))
    assert got == also
    assert (True, True) == (first.is_done, second.is_done)


async def test_a_worker_gets_what_is_sent_while_it_listens(url: str) -> None:
    """Nothing is kept for one that is not there, and another channel is not heard."""
    early, late = Worker(url, "b-late"), Worker(url, "b-late")
    async with listening(early):
        await early.note.kiq("before")
        assert ["before"] == await early.got(1)
    async with listening(late):
        await Worker(url, "b-other").note.kiq("elsewhere")
        await early.note.kicker().with_labels(queue_name="b-other").kiq("elsewhere")
        await early.note.kiq("after")
        assert ["after"] == await late.got(1)

    assert (True, True) == (early.is_done, late.is_done)


async def test_another_serializer_is_carried_in_json(url: str) -> None:
    """A pickled message is carried as it is."""
    worker = Worker(url, "b-pickled")
    worker.broker.with_serializer(PickleSerializer())
    async with listening(worker):
        await worker.note.kiq(1.5)
        assert [1.5] == await worker.got(1)


async def test_what_cannot_be_a_broadcast_is_refused(url: str) -> None:
    """A delay has nobody to wait for it, and a wrong token hears nothing."""
    worker = Worker(url, "b-refused")
    with pytest.raises(SendTaskError) as refused:
        await worker.note.kicker().with_labels(delay=5).kiq("late")
    stranger = CodeqPubSubBroker(url, queue_name="b-refused", token="another")

    assert "a broadcast has no delay" in str(refused.value.__cause__)
    with pytest.raises(Refused, match="token"):
        await anext(stranger.listen())
