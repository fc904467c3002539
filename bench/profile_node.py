"""Profile: run the cycle load against a cluster and sample one node with py-spy."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.generator import generate
from bench.job import Job
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS

_RATE = 200
_TOP = 40


def main() -> int:
    """Sample a node under load and print where its time goes, by package and by function."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile_node", description=__doc__)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kind", choices=("create", "cycle", "batch"), default="cycle")
    parser.add_argument("--node", default="n1")
    parser.add_argument("--out", type=Path, help="keep the collapsed stacks in this file")
    options = parser.parse_args()
    if shutil.which("py-spy") is None:
        print("py-spy is not on the PATH: pip install py-spy", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="profile-") as directory:
        stacks = asyncio.run(_profile(options, Path(directory)))
    if options.out:
        options.out.write_text(stacks)
    print(summary(stacks))
    return 0


async def _profile(options: argparse.Namespace, directory: Path) -> str:
    async with LocalCluster(directory) as cluster:
        job = Job(
            kind=options.kind,
            urls=list(cluster.urls.values()),
            producer_token=PRODUCER_TOKEN,
            worker_token=next(iter(WORKER_TOKENS.values())),
            command=f"profile-{time.time_ns()}",
            lanes=options.lanes,
            seconds=options.seconds + 1,
        )
        loading = asyncio.create_task(asyncio.to_thread(generate, job))
        await asyncio.sleep(job.warm_up_s + 0.5)
        raw = directory / "stacks"
        command = ["py-spy", "record", "--pid", str(cluster.pid(options.node)), "--format", "raw"]
        command += ["--rate", str(_RATE), "--duration", str(int(options.seconds)), "--gil"]
        command += ["--nonblocking", "--output", str(raw)]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        sample = await loading
        print(f"{sample.per_s:,.0f} tasks/s while sampled")
        return raw.read_text()


def summary(stacks: str) -> str:
    """Summarize collapsed stacks.

    Returns:
        Own time by package and by function, then time including callees by function. Each is a
        share of the samples that held the interpreter lock.
    """
    own_package: Counter[str] = Counter()
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    total = 0
    for line in stacks.splitlines():
        path, _, count_text = line.rpartition(" ")
        count = int(count_text)
        frames = [_function(frame) for frame in path.split(";")]
        total += count
        own[frames[-1]] += count
        own_package[_package(frames[-1])] += count
        for frame in set(frames):
            within[frame] += count
    lines = [f"{total} samples"]
    for title, counter, top in (
        ("own time by package", own_package, 20),
        ("own time by function", own, _TOP),
        ("time with callees by function", within, _TOP),
    ):
        lines += ["", title]
        lines += [f"  {100 * n / total:5.1f} %  {name}" for name, n in counter.most_common(top)]
    return "\n".join(lines)


def _function(frame: str) -> str:
    """Return a frame without its line, so that each function is counted once."""
    name, _, place = frame.partition(" (")
    return f"{name} ({place.rpartition(':')[0] or place.rstrip(')')})"


def _package(function: str) -> str:
    """Return the package that a function belongs to, of this project or of a library."""
    place = function.rpartition(" (")[2].rstrip(")")
    parts = place.replace("codeq_cluster/", "", 1).split("/") if place else ["?"]
    if place.startswith("codeq_cluster/"):
        return f"codeq_cluster/{parts[0]}"
    return parts[0]


if __name__ == "__main__":
    sys.exit(main())
