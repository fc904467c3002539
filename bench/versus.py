"""Versus: the same loads on several clusters in one run, in turn, several rounds.

Only figures of the same minute are comparable, because a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.contenders import Contender, contender
from bench.generator import generate
from bench.job import LOADS, Job, Sample
from bench.machine import describe, prefer, scratch
from bench.run import RESULTS

_ROOT = Path(__file__).parent.parent

_USUAL = ("create@1", "create@32", "cycle@32", "cycle@128", "batch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the loads, print medians and ratios, keep the samples in `bench/results`."""
    options = _options(arguments)
    # SIGTERM then unwinds like Ctrl-C, so that every started process is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    prefer([os.getpid()], nice=options.nice)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        sides = [
            contender(spec, directory / f"{n}", nice=options.nice)
            for n, spec in enumerate([options.first, *options.other])
        ]
        samples = _alternate(sides, options)
    names = [f"{'ABCDEFGHI'[n]} {side.name}" for n, side in enumerate(sides)]
    print(render(names, samples))
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-versus.json"
    report = {"machine": machine, "command": sys.argv, "sides": names, "samples": samples}
    target.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    print(f"\n{target}")
    return 1 if any(s.failed for rows in samples.values() for row in rows for s in row) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description=__doc__)
    spec = "a checkout with a .venv, or the original's server binary; PATH or PATH:SHARDS"
    parser.add_argument("other", nargs="+", metavar="OTHER", help=spec)
    parser.add_argument("--first", default=str(_ROOT), metavar="PATH", help="this checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, each load")
    parser.add_argument("--only", nargs="+", choices=LOADS, default=_USUAL, metavar="LOAD")
    parser.add_argument(
        "--apart", action="store_true", help="only one cluster at a time has processes"
    )
    parser.add_argument("--nice", type=int, default=0, help="priority of all that is measured")
    parser.add_argument("--directory", type=Path, help="where the data goes; a real disk")
    return parser.parse_args(arguments)


def _alternate(
    sides: Sequence[Contender], options: argparse.Namespace
) -> dict[str, list[list[Sample]]]:
    """Return, by load, one list per round with a sample of each side."""
    samples: dict[str, list[list[Sample]]] = {load: [] for load in options.only}
    with ExitStack() as stack:
        for side in sides:
            stack.callback(side.stop)
            if not options.apart:
                side.start()
        for turn in range(options.rounds):
            if options.apart:
                by_side = []
                for side in sides:
                    side.start()
                    by_side.append([_one(side, sides, load, options) for load in options.only])
                    side.stop()
                for n, load in enumerate(options.only):
                    samples[load].append([row[n] for row in by_side])
            else:
                for load in options.only:
                    samples[load].append([_one(side, sides, load, options) for side in sides])
            print(f"  round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    return samples


def _one(
    side: Contender, sides: Sequence[Contender], load: str, options: argparse.Namespace
) -> Sample:
    kind, lanes = LOADS[load]
    others = [pid for other in sides if other is not side for pid in other.pids]
    sample = generate(
        Job(
            kind=kind,
            protocol=side.protocol,
            urls=side.urls,
            producer_token=side.producer_token,
            worker_token=side.worker_token,
            command=f"versus-{time.time_ns()}",
            lanes=lanes,
            seconds=options.seconds,
            batch=side.batch_max,
            watched={"nodes": side.pids, "idle": others},
        )
    )
    print(f"  {side.name:<18} {load:<10} {_line(sample)}", file=sys.stderr, flush=True)
    return sample


def _line(sample: Sample) -> str:
    p50s = " ".join(
        f"{name} {took.p50:.2f}/{took.p99:.2f}" for name, took in sample.latency_ms.items()
    )
    return (
        f"{sample.per_s:>7,.0f}/s  {sample.cpu_ms():.2f} ms CPU a task;"
        f" generator {sample.generator_ms:.3f} ms a request;"
        f" idle ones {sample.cpu_s.get('idle', 0) / sample.seconds:.0%},"
        f" others {sample.foreign_cores:.0%} of a core;"
        f" p50/p99 {p50s} {sample.failed or ''}"
    )


def render(names: Sequence[str], samples: dict[str, list[list[Sample]]]) -> str:
    """Return medians, and every other side's ratios to the first, round by round."""
    lines = [
        (
            f"{'load':<10} {'side':<24} {'tasks/s':>8} {'CPU ms':>7} {'p50':>7} {'p99':>7} ms"
            f" {'generator':>10}   ratio of tasks/s: median (each round); of CPU"
        )
    ]
    for load, rounds in samples.items():
        first = [row[0] for row in rounds]
        for n, name in enumerate(names):
            mine = [row[n] for row in rounds]
            line = f"{'' if n else load:<10} {name:<24} {_medians(mine)}"
            lines.append(f"{line}   {_ratios(mine, first)}" if n else line)
    return "\n".join(lines)


def _medians(samples: Sequence[Sample]) -> str:
    return (
        f"{statistics.median(s.per_s for s in samples):>8,.0f}"
        f" {statistics.median(s.cpu_ms() for s in samples):>7.2f}"
        f" {statistics.median(s.slowest.p50 for s in samples):>7.2f}"
        f" {statistics.median(s.slowest.p99 for s in samples):>7.2f}   "
        f" {statistics.median(s.generator_ms for s in samples):>10.3f}"
    )


def _ratios(mine: Sequence[Sample], first: Sequence[Sample]) -> str:
    rates = [a.per_s / b.per_s for a, b in zip(mine, first, strict=True)]
    cpu = [a.cpu_ms() / b.cpu_ms() for a, b in zip(mine, first, strict=True)]
    each = " ".join(f"{rate:.2f}" for rate in rates)
    return f"x {statistics.median(rates):.2f} ({each}); x {statistics.median(cpu):.2f}"


if __name__ == "__main__":
    sys.exit(main())
