"""Simulate the Raft groups.

python -m tests.simulator --seed 7 --trace
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import fields

from codeq_cluster.raft.safety_switches import SafetySwitches
from tests.simulator.groups import simulate


def main(arguments: list[str] | None = None) -> int:
    """Run seeds from the command line; return 1 when one of them finds a violation."""
    parser = argparse.ArgumentParser(description="Run the Raft groups through seeded faults.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after another")
    parser.add_argument("--trace", action="store_true", help="print every fault")
    parser.add_argument(
        "--off",
        action="append",
        default=[],
        choices=[field.name for field in fields(SafetySwitches)],
        help="switch a rule off to see what it prevents",
    )
    options = parser.parse_args(arguments)
    # The simulator itself reports a stopped replica.
    logging.getLogger("codeq_cluster.raft").setLevel(logging.CRITICAL + 1)
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)
    write = sys.stdout.write
    rules = SafetySwitches(**dict.fromkeys(options.off, False))
    trace = (lambda line: print_line(write, line)) if options.trace else None
    failed = 0
    began = time.monotonic()
    virtual = 0.0
    for seed in range(options.seed, options.seed + options.seeds):
        report = simulate(seed, rules=rules, trace=trace)
        virtual += report.virtual_s
        if report.violation:
            failed += 1
        print_line(
            write,
            f"seed {seed}: {report.violation or 'ok'}; {report.acknowledged} of {report.proposed} "
            f"acknowledged, {report.reads} reads, {report.crashes} crashes, {report.terms} terms, "
            f"{report.counters['snapshots']} snapshots, {report.counters['outages']} outages, "
            f"{report.counters['reseeded']} states rebuilt, "
            f"{report.counters['member changes']} member changes"
            f"{' of a small log' * report.options.small}, digest {report.digest}",
        )
    seconds = time.monotonic() - began
    print_line(
        write,
        f"{failed} of {options.seeds} seeds failed; {virtual:.0f} virtual s in {seconds:.1f} s",
    )
    return 1 if failed else 0


def print_line(write: Callable[[str], object], line: str) -> None:
    """Write one line."""
    write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
