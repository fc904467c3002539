"""Page: how soon views of the admin page are seen with many queues and many dead letters.

    python -m bench.page [--dead 100000] [--queues 2000] [--opens 21]

Runs three nodes, makes the dead letters by leases that expire, and opens views in Debian's
Chromium, each as often as told, with its cache. Prints one JSON object: for each view the median
and the greatest milliseconds until the first paint and until its content is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from bench.machine import describe, scratch
from tests.acceptance.page.browser import WORKER, Window, chromium, page_settings
from tests.harness.cluster import LocalCluster
from tests.harness.http import HttpAnswer, HttpClient
from tests.harness.waiting import until

_API = "/v1/codeq"
_BATCH = 100
_LANES = 8
_COMMAND = "broken"
_DEAD_WITHIN_S = 300.0
# By address: an element of its content.
_VIEWS = {
    "": "main .figures",
    "/queues": "main table tbody tr",
    f"/dead-letters/{_COMMAND}": "main table tbody tr",
}
_PAINTED = "performance.getEntriesByName('first-paint')[0].startTime"


class _Broker:
    """The cluster's API, through its first node."""

    def __init__(self, http: HttpClient, url: str) -> None:
        self._http = http
        self._url = url

    async def send(self, method: str, path: str, token: str, body: object = None) -> HttpAnswer:
        """Return the answer, which must be a success."""
        content = None if body is None else json.dumps(body).encode()
        answer = await self._http.send(method, self._url, _API + path, token=token, body=content)
        assert answer.status < 300, (path, answer.status, answer.body[:300])
        return answer

    async def create(self, commands: list[str], **fields: object) -> None:
        """Create a task of each of these commands."""
        tasks = [{"command": each, "payload": {}, **fields} for each in commands]
        await self.send("POST", "/tasks/batch", "producer", {"tasks": tasks})

    async def let_die(self) -> None:
        """Lease tasks for a second: those with one attempt become dead letters."""
        body = {"commands": [_COMMAND], "count": _BATCH, "leaseSeconds": 1}
        await self.send("POST", "/tasks/claim/batch", WORKER, body)

    async def dead(self) -> int:
        """Return the number of dead letters."""
        queue = (await self.send("GET", f"/admin/queues/{_COMMAND}", "admin")).json
        return int(queue["dlq"])


async def _in_lanes(times: int, act: Callable[[int], Coroutine[object, object, None]]) -> None:
    left = iter(range(times))

    async def lane() -> None:
        for number in left:
            await act(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(_LANES):
            group.create_task(lane())


async def _load(broker: _Broker, *, dead: int, queues: int) -> None:
    async def begin(number: int) -> None:
        names = range(number * _BATCH, min((number + 1) * _BATCH, queues))
        await broker.create([f"queue-{each:05}" for each in names])

    async def die(_number: int) -> None:
        await broker.create([_COMMAND] * _BATCH, maxAttempts=1)
        await broker.let_die()

    await _in_lanes(-(-queues // _BATCH), begin)
    await _in_lanes(dead // _BATCH, die)

    async def all_died() -> bool:
        await broker.let_die()
        return await broker.dead() >= dead

    await until(all_died, within_s=_DEAD_WITHIN_S, what=f"{dead} dead letters")


async def _opened(window: Window, path: str, ready: str, opens: int) -> dict[str, float]:
    painted, complete = [], []
    for _ in range(opens):
        begun_s = time.perf_counter()
        await window.open(path, ready=ready)
        complete.append((time.perf_counter() - begun_s) * 1000)
        painted.append(float(await window.page.evaluate(_PAINTED)))
    return {
        "first_paint_ms_median": round(statistics.median(painted)),
        "first_paint_ms_max": round(max(painted)),
        "content_ms_median": round(statistics.median(complete)),
        "content_ms_max": round(max(complete)),
    }


async def _measure(directory: Path, *, dead: int, queues: int, opens: int) -> dict[str, object]:
    async with LocalCluster(
        directory / "nodes", settings=page_settings(directory / "backups")
    ) as cluster:
        url = cluster.urls["n1"]
        async with HttpClient() as http:
            broker = _Broker(http, url)
            begun_s = time.perf_counter()
            await _load(broker, dead=dead, queues=queues)
            loaded_s = time.perf_counter() - begun_s
            died = await broker.dead()
        async with chromium() as browser, browser.window(url, token="both") as window:
            views = {
                path or "/": await _opened(window, path, ready, opens)
                for path, ready in _VIEWS.items()
            }
    return {"dead_letters": died, "queues": queues, "load_s": round(loaded_s), "views": views}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--dead", type=int, default=100_000)
    parser.add_argument("--queues", type=int, default=2_000)
    parser.add_argument("--opens", type=int, default=21)
    given = parser.parse_args()
    with scratch(None) as directory:
        machine = describe(directory)
        figures = asyncio.run(
            _measure(directory, dead=given.dead, queues=given.queues, opens=given.opens)
        )
    print(json.dumps({**figures, "opens": given.opens, "machine": machine}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
