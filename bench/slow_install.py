"""Slow install: the effect on writers while a node fetches gigabytes of state over a slow link.

    unshare --net python -m bench.slow_install --gib 5 --mbit 200

Of three real nodes, two hold the state and serve creates at a steady rate. The third starts with an
empty disk and must fetch a snapshot of every shard. Its link is slow in both directions: proxies
connect it to the others, and the kernel shapes their traffic in a separate network namespace. With
--apart and --third it shares neither processor nor disk with the other two, as on its own machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.filled import data_bytes, fill, installed, told
from bench.machine import DiskProbe, describe, rss_mib, scratch
from bench.steady import Request, Steady, running
from tests.harness.accounting import Percentiles
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS

_PAYLOAD_BYTES = 900_000  # Near the limit of a payload, so that few tasks make a large state.
_READY_WITHIN_S = 3600.0
_BURST = "64k"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, measure and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.slow_install", description=__doc__)
    parser.add_argument("--gib", type=float, default=5.0, help="of state")
    parser.add_argument("--mbit", type=int, default=200, help="a second, each way of the slow link")
    parser.add_argument("--creates", type=float, default=50.0, help="offered a second")
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds before and after")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--snapshot-bytes-per-s", type=int, default=32 * 2**20)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    parser.add_argument(
        "--third", type=Path, default=None, help="of the third node: a file system of its own"
    )
    parser.add_argument(
        "--apart", action="store_true", help="the third node and its link have a core of their own"
    )
    options = parser.parse_args(arguments)
    _own_network()
    with scratch(options.directory) as directory, scratch(options.third or directory) as third:
        (directory / "n3").symlink_to(third, target_is_directory=True)
        machine = describe(directory)
        figures = asyncio.run(_measure(options, directory))
    command = " ".join(["unshare --net python -m bench.slow_install", *sys.argv[1:]])
    print(json.dumps({"command": command, **figures, "machine": machine}, indent=2))
    return 0


async def _measure(options: argparse.Namespace, directory: Path) -> dict[str, object]:
    cluster = LocalCluster(
        directory,
        shards=options.shards,
        cuttable=["n3"],
        settings={"raft": {"snapshotBytesPerSecond": options.snapshot_bytes_per_s}},
        absent=["n3"],
    )
    first, second, third = cluster.nodes.values()
    tasks = round(options.gib * 2**30 / _PAYLOAD_BYTES)
    fill(first, second, third, shards=options.shards, tasks=tasks, payload_bytes=_PAYLOAD_BYTES)
    size = data_bytes(first)
    _say(f"filled, {size / 2**30:.2f} GiB a node")
    *others, last = sorted(os.sched_getaffinity(0))
    if options.apart and not others:
        raise SystemExit("--apart needs two cores")
    if options.apart:
        os.sched_setaffinity(0, others)
    async with cluster:
        _slow_down(cluster, third.id, mbit=options.mbit)
        load = Steady(
            kind="create",
            urls=[first.url, second.url],
            tokens=[(PRODUCER_TOKEN, WORKER_TOKENS["worker-0"])],
            command="steady",
            per_s=options.creates,
            payload_bytes=300,
        )
        async with running(load) as generator:
            with DiskProbe(directory) as disk:
                await asyncio.sleep(options.quiet)
                if options.apart:
                    # This thread drives the proxies. Processes started from here on inherit its
                    # cores.
                    os.sched_setaffinity(0, [last])
                begun_s = time.monotonic()
                cluster.start(third.id)
                await cluster.wait_ready([third.id], within_s=_READY_WITHIN_S)
                ended_s = time.monotonic()
                _say(f"ready after {ended_s - begun_s:.0f} s")
                await asyncio.sleep(options.quiet)
            seen = await generator.stop()
        rss = {node: round(rss_mib(cluster.pid(node))) for node in cluster.nodes}
        await cluster.wait_converged()
    sizes, seconds = installed(third)
    return {
        "state_gib": round(size / 2**30, 2),
        "tasks": tasks,
        "link_mbit_s": options.mbit,
        "creates_per_s": options.creates,
        "ready_after_s": round(ended_s - begun_s, 1),
        "snapshots_installed_s": seconds,
        "snapshots_mib": [round(each / 2**20) for each in sizes],
        "fetched_mib_per_s": round(sum(sizes) / 2**20 / max(seconds, default=1), 1),
        "fetches_begun": len(told(third, "fetching a snapshot")),
        "leaders_changed_by_n1": len(told(first, "leader changed")),
        "create_ms": {
            "before": _took(seen.requests, begun_s - options.quiet, begun_s),
            "during": _took(seen.requests, begun_s, ended_s),
            "after": _took(seen.requests, ended_s, float("inf")),
            "during_by_ten_seconds_p99": _by_ten_seconds(seen.requests, begun_s, ended_s),
        },
        "slowest_sync_ms": {
            "before": disk.slowest(begun_s - options.quiet, begun_s),
            "during_by_ten_seconds": [
                round(disk.slowest(start, min(start + 10, ended_s)), 1)
                for start in range(int(begun_s), int(ended_s), 10)
            ],
            "after": disk.slowest(ended_s, float("inf")),
        },
        "failed": sum(bool(each.failure) for each in seen.requests),
        "held_back": seen.held_back,
        "rss_mib": rss,
    }


def _own_network() -> None:
    """Bring up the namespace's loopback; refuse to run where other programs' traffic flows."""
    links = json.loads(_run("ip", "-json", "link", "show"))
    others = [link["ifname"] for link in links if link["ifname"] != "lo" and "UP" in link["flags"]]
    if others:
        raise SystemExit(f"run it within `unshare --net`: this network has {', '.join(others)}")
    _run("ip", "link", "set", "lo", "up")


def _slow_down(cluster: LocalCluster, node: str, *, mbit: int) -> None:
    """Shape the traffic to and from a node over its link, each direction separately."""
    _run("tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "1")
    _class("1:1", "10gbit", "10m")
    for number in ("1:2", "1:3"):
        _class(number, f"{mbit}mbit", _BURST)
    for peer in cluster.nodes:
        if peer == node:
            continue
        # Either end may have opened the connection, so match packets to and from the proxy's port.
        _filter("dport", cluster.link_port(peer, node), "1:2")
        _filter("sport", cluster.link_port(node, peer), "1:2")
        _filter("dport", cluster.link_port(node, peer), "1:3")
        _filter("sport", cluster.link_port(peer, node), "1:3")


def _class(number: str, rate: str, burst: str) -> None:
    way = ("dev", "lo", "parent", "1:", "classid", number)
    _run("tc", "class", "add", *way, "htb", "rate", rate, "burst", burst, "quantum", "60000")


def _filter(field: str, port: int, number: str) -> None:
    way = ("dev", "lo", "parent", "1:", "protocol", "ip", "u32")
    _run("tc", "filter", "add", *way, "match", "ip", field, str(port), "0xffff", "flowid", number)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _took(requests: Sequence[Request], from_s: float, to_s: float) -> dict[str, float]:
    took = Percentiles.of([each.took_ms for each in requests if from_s <= each.ended_s < to_s])
    return {"count": took.count, "p50": took.p50, "p99": took.p99, "max": took.max}


def _by_ten_seconds(requests: Sequence[Request], from_s: float, to_s: float) -> list[float]:
    starts = range(int(from_s), int(to_s), 10)
    return [_took(requests, start, min(start + 10, to_s))["p99"] for start in starts]


def _say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
