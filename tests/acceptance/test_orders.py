"""The shop of docs/orders.md on three nodes, whose workers are killed at every line of theirs."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codeq_cluster.client import Client
from tests.acceptance.runbooks import blocks
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "orders.md"
DAY_S = 10
# Ends its process without a word before the given line that runs of the shop's functions.
_MORTAL = """
import itertools, os, sys, threading
lines, dies_at = itertools.count(1), int(sys.argv[1])
def traced(frame, event, _):
    if frame.f_code.co_filename.endswith(("workers.py", "shop.py")):
        if event == "line" and next(lines) == dies_at:
            os._exit(9)
        return traced
    return None
import workers
threading.settrace(traced)
workers.worker.run()
"""
_BUYER = """
import json, page
with page.open_shop() as client:
    made = [page.buy(client, f"cart-{n}", f"c{n % 8}", n) for n in range(24)]
    for n in range(1, 24, 2):
        page.give_back(client, made[n], f"why {n}")
print(json.dumps(made))
"""
LINES = 24  # Of one order that comes back, from its begin to its end.


@contextmanager
def worker(
    directory: Path, cluster: LocalCluster, dies_at: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of the shop, which dies at a line; 0 for never."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MORTAL, str(dies_at)],
        cwd=directory,
        env=environment(cluster, WORKER_TOKENS["worker-0"]),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def said_by(directory: Path, cluster: LocalCluster, command: list[str], token: str) -> str:
    """Run a program of the page to its end, and return what it says."""
    ended = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=directory,
        env=environment(cluster, token),
        check=True,
        capture_output=True,
    )
    return str(ended.stdout.decode())


def environment(cluster: LocalCluster, token: str) -> dict[str, str]:
    urls = list(cluster.urls.values())
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": ".",
        "DAY": str(DAY_S),
        "CODEQ_URLS": ",".join(urls),
        "CODEQ_BASE_URL": urls[0],
        "CODEQ_TOKEN": token,
    }


@pytest.mark.timeout(180)
async def test_every_order_ends_right_wherever_its_workers_die(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """One worker dies at each line, leaders meanwhile; each order is paid and shipped once."""
    for block in blocks(PAGE.read_text()):
        if block.language == "python":
            (tmp_path / block.marks).write_text(block.body)
        else:
            await said_by(tmp_path, cluster, ["sh", "-c", block.body], ADMIN_TOKEN)
    urls = list(cluster.urls.values())
    async with Client(urls, token=PRODUCER_TOKEN, deadline_s=60) as client, asyncio.timeout(170):
        told = await said_by(tmp_path, cluster, [sys.executable, "-c", _BUYER], PRODUCER_TOKEN)
        made = {order: n for n, order in enumerate(json.loads(told))}
        # Each dies at another line; one is left, so that the orders end.
        for dies_at in range(1, LINES + 1):
            with worker(tmp_path, cluster, dies_at) as process:
                if dies_at % 8 == 0:
                    leader = await cluster.leader_of(dies_at % cluster.shards)
                    await cluster.kill(leader)
                    cluster.start(leader)
                assert 9 == await asyncio.to_thread(process.wait)
        with worker(tmp_path, cluster, 0):
            results = {each: await client.wait(each, timeout_s=120) for each in made}

    assert {each: ("kept", "returned")[n % 2] for each, n in made.items()} == {
        each: result.value for each, result in results.items()
    }
    with sqlite3.connect(tmp_path / "world.db") as world:
        effects = world.execute("SELECT kind, key, said FROM effects").fetchall()
    done = Counter((kind, key) for kind, key, _ in effects if kind != "mail")
    wanted = [("pay", f"{each}:charge") for each in made]
    wanted += [("ship", f"{each}:ship") for each in made]
    wanted += [("refund", f"{each}:refund") for each, n in made.items() if n % 2]
    assert Counter(wanted) == done
    mails = [json.loads(said) for kind, _, said in effects if kind == "mail"]
    # Beside one for each there is at most one for each worker that has died.
    assert LINES + LINES // 2 <= len(mails) <= LINES + LINES // 2 + LINES
