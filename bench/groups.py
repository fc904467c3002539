"""Groups: how many log entries a group adds to those of its members.

    python -m bench.groups [--members 100000]

Three nodes with four shards, one request at a time, none for more than a hundred tasks. The members
are added, claimed and ended, then the completion task. The same number of tasks lives without a
group, too: all of one key, which no rule limits, so that one shard has them as it has the members.
What the group adds to its shard's entries is the difference; the other shards should have none.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.follow_ups import SHARDS
from bench.machine import describe, scratch
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS

_WORKER = WORKER_TOKENS["worker-0"]
_AT_ONCE = 100
_COMMITTED = "codeq_raft_commit_index{"
_SETTLE_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what both take."""
    parser = argparse.ArgumentParser(prog="python -m bench.groups", description=__doc__)
    parser.add_argument("--members", type=int, default=100_000)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        print(" ".join(["python -m bench.groups", *sys.argv[1:]]))
        print(machine)
        asyncio.run(_measure(options.members, directory))
    return 0


async def _measure(members: int, directory: Path) -> None:
    async with (
        LocalCluster(directory, shards=SHARDS) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        work = _Work(client, next(iter(cluster.urls)), members)
        sums = {}
        for name, live in (("without", work.alone), ("group", work.grouped)):
            before, begun = await _entries(cluster), time.monotonic()
            await live()
            took_s = time.monotonic() - begun
            await asyncio.sleep(_SETTLE_S)
            found = await _entries(cluster)
            found.subtract(before)
            sums[name] = sum(found.values())
            shards = ", ".join(f"{shard}: {found[shard]}" for shard in sorted(found))
            print(f"{name:<8} {members} tasks in {took_s:.0f} s, entries by shard: {shards}")
        print(f"entries beyond those of the members: {sums['group'] - sums['without']}")


class _Work:
    """Tasks from create to end, through one node."""

    def __init__(self, client: RecordingClient, node: str, members: int) -> None:
        self._client = client
        self._node = node
        self._members = members

    async def alone(self) -> None:
        """Let the tasks live without a group."""
        for tasks in self._batches("alone", key="one"):
            await self._post("/tasks/batch", PRODUCER_TOKEN, {"tasks": tasks})
        await self._work_off("alone", self._members)

    async def grouped(self) -> None:
        """Let them be members of a group, and end what follows it."""
        then = {"command": "then", "payload": {}}
        await self._post("/groups", PRODUCER_TOKEN, {"id": "g", "then": then})
        for tasks in self._batches("member"):
            await self._post("/groups/g/tasks", PRODUCER_TOKEN, {"tasks": tasks})
        await self._post("/groups/g/seal", PRODUCER_TOKEN, {})
        await self._work_off("member", self._members)
        await self._work_off("then", 1)

    def _batches(self, command: str, **said: object) -> list[list[dict[str, object]]]:
        task = {"command": command, "payload": {}, **said}
        full, rest = divmod(self._members, _AT_ONCE)
        return [[task] * _AT_ONCE] * full + ([[task] * rest] if rest else [])

    async def _work_off(self, command: str, tasks: int) -> None:
        while tasks:
            asked = {"commands": [command], "count": min(tasks, _AT_ONCE), "leaseSeconds": 600}
            claimed = await self._post("/tasks/claim/batch", _WORKER, asked)
            ids = [task["id"] for task in claimed["tasks"]]
            results = [{"taskId": each, "status": "COMPLETED", "result": {}} for each in ids]
            ended = await self._post("/tasks/batch/results", _WORKER, {"results": results})
            assert len(ids) == len(ended["results"]) > 0
            tasks -= len(ids)

    async def _post(self, path: str, token: str, body: object) -> dict[str, Any]:
        answer = await self._client.call("POST", self._node, path, token, body)
        assert answer.status < 300, answer
        return answer.body


async def _entries(cluster: LocalCluster) -> Counter[str]:
    """Return the committed entries of each shard."""
    found: Counter[str] = Counter()
    for node in cluster.urls:
        for name, value in (await cluster.metrics(node)).items():
            if name.startswith(_COMMITTED):
                found[name.split('"')[1]] = max(found[name.split('"')[1]], int(value))
    return found


if __name__ == "__main__":
    sys.exit(main())
