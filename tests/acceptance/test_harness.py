"""Harness: what a test starts ends with it, even if the test is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.harness.waiting import until

_TEST = """
import asyncio, sys
from pathlib import Path
from tests.harness.cluster import LocalCluster

async def main():
    async with LocalCluster(Path(sys.argv[1])) as cluster:
        await cluster.pause("n2")
        print(*(cluster.pid(node) for node in cluster.nodes), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that ended may wait to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def test_nodes_do_not_outlive_a_killed_test(tmp_path: Path) -> None:
    """Running and frozen nodes end with the process that started them."""
    test = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _TEST, str(tmp_path)), stdout=subprocess.PIPE
    )
    assert test.stdout is not None
    pids = [int(pid) for pid in (await test.stdout.readline()).split()]
    lived = [_lives(pid) for pid in pids]
    test.kill()
    await test.wait()

    async def gone() -> bool:
        return not any(_lives(pid) for pid in pids)

    try:
        await until(gone, what="the end of the nodes")
    finally:
        for pid in filter(_lives, pids):
            os.kill(pid, signal.SIGKILL)

    assert [True] * 3 == lived
