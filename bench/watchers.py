"""Watchers: what a node's CPU costs more while callers follow every event of a busy cluster.

    python -m bench.watchers [--watchers 20] [--cycles 330] [--rounds 3] [--seconds 8]

Three nodes under a steady load of creates, claims and results; each cycle is three events. In each
round the node `n1` serves no watcher, and then all of them: streams of the whole tenant.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench.machine import cpu_seconds_exact, describe, scratch
from tests.harness.cluster import LocalCluster
from tests.harness.load import Load, workers
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS

_SETTLE_S = 2.0


class _Watchers:
    """Streams of one node, read and counted."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self.events = 0

    @asynccontextmanager
    async def watching(self, count: int) -> AsyncIterator[None]:
        """Follow all events with so many streams within the block."""
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(self._watch()) for _ in range(count)]
            yield
            for stream in streams:
                stream.cancel()

    async def _watch(self) -> None:
        reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        writer.write(
            b"GET /v1/codeq/events HTTP/1.1\r\nHost: n1\r\nAccept: text/event-stream\r\n"
            b"Authorization: Bearer %b\r\n\r\n" % PRODUCER_TOKEN.encode()
        )
        try:
            while piece := await reader.read(2**18):
                self.events += piece.count(b"data: ")
        finally:
            writer.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the CPU of a node without watchers and with them."""
    parser = argparse.ArgumentParser(prog="python -m bench.watchers", description=__doc__)
    parser.add_argument("--watchers", type=int, default=20)
    parser.add_argument("--cycles", type=float, default=330, help="a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="of each measurement")
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        plain, watched, events = asyncio.run(_measure(options, directory))
    print(" ".join(["python -m bench.watchers", *sys.argv[1:]]))
    print(machine)
    more = statistics.median(b - a for a, b in zip(plain, watched, strict=True))
    print(f"without watchers the node takes {statistics.median(plain):.1%} of a core")
    print(
        f"{options.watchers} watchers of {statistics.median(events):.0f} events a second each "
        f"take {more:+.1%}"
    )
    return 0


async def _measure(
    options: argparse.Namespace, directory: Path
) -> tuple[list[float], list[float], list[float]]:
    """Return the node's cores without watchers and with them, and each watcher's events/s."""
    cores: dict[int, list[float]] = {0: [], options.watchers: []}
    events: list[float] = []
    async with (
        LocalCluster(directory) as cluster,
        Load(
            cluster.urls,
            producer_token=PRODUCER_TOKEN,
            worker_tokens=workers(WORKER_TOKENS, 24),
            command="watched",
            cycles_per_s=options.cycles,
        ),
    ):
        for _ in range(options.rounds):
            for count, found in cores.items():
                seen = _Watchers(cluster.urls["n1"])
                async with seen.watching(count):
                    await asyncio.sleep(_SETTLE_S)
                    before, told = cpu_seconds_exact(cluster.pid("n1")), seen.events
                    await asyncio.sleep(options.seconds)
                    took = cpu_seconds_exact(cluster.pid("n1")) - before
                    found.append(took / options.seconds)
                if count:
                    events.append((seen.events - told) / count / options.seconds)
    return cores[0], cores[options.watchers], events


if __name__ == "__main__":
    sys.exit(main())
