"""Wrk: the same cycles driven by wrk, which itself costs little; left out if not installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.report import Row
from codeq_cluster.testing.accounting import Percentiles

_SCRIPT = Path(__file__).with_name("cycle.lua")
_CONNECTIONS = 32
_LATENCY = re.compile(r"^cycle-lua (\w+)=([\d.]+)$", re.MULTILINE)


def wrk_rows(
    urls: Sequence[str], *, seconds: float, producer_token: str, worker_token: str
) -> list[Row]:
    """Run full cycles from 32 connections against each node in turn; empty without wrk.

    One wrk drives one address, so each node is measured separately; every node forwards requests
    that it does not lead.
    """
    wrk = shutil.which("wrk")
    if wrk is None:
        print("  wrk is not installed: left out", file=sys.stderr)
        return []
    rows = []
    for url in urls:
        ended = subprocess.run(
            [
                wrk,
                "--threads=1",
                f"--connections={_CONNECTIONS}",
                f"--duration={max(1, round(seconds))}s",
                "--timeout=15s",
                f"--script={_SCRIPT}",
                url,
            ],
            capture_output=True,
            text=True,
            check=True,
            env={
                **os.environ,
                "PRODUCER_TOKEN": producer_token,
                "WORKER_TOKEN": worker_token,
                "QUEUE": f"bench-wrk-{time.time_ns()}",
            },
        )
        seen = {name: float(value) for name, value in _LATENCY.findall(ended.stdout)}
        row = Row(
            kind="wrk",
            lanes=_CONNECTIONS,
            per_s=round(seen["finished"] / seen["seconds"], 1),
            latency_ms={
                "any": Percentiles(
                    count=int(seen["requests"]),
                    p50=seen["p50"],
                    p90=seen["p90"],
                    p99=seen["p99"],
                    max=seen["max"],
                )
            },
            failed={"wrk": int(seen["failed"])} if seen["failed"] else {},
        )
        print(f"  {row.line()}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows
