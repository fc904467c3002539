"""Counters: the counts of all nodes become a number per task."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from bench.counters import of_kernel, of_metrics, per_operation

_NODE = """\
# TYPE codeq_forward_seconds histogram
codeq_forward_seconds_bucket{{op="operate",le="+Inf"}} {forwarded}
codeq_forward_seconds_count{{op="operate"}} {forwarded}
codeq_forward_seconds_sum{{op="operate"}} 0.5
# TYPE codeq_task_created_total counter
codeq_task_created_total{{command="a"}} 2.0
codeq_task_created_total{{command="b"}} 3.0
# TYPE codeq_raft_commit_index gauge
codeq_raft_commit_index{{shard="0"}} {committed}
codeq_raft_commit_index{{shard="1"}} 10.0
# TYPE process_open_fds gauge
process_open_fds 7.0
"""


def test_counters_are_summed_and_entries_counted_once() -> None:
    """Every replica counts every entry, so only the furthest replica of a shard counts."""
    found = of_metrics(
        [_NODE.format(forwarded=3, committed=7), _NODE.format(forwarded=1, committed=6)]
    )

    assert Counter({"forward": 4.0, "task_created": 10.0, "entries": 17.0}) == found


def test_rates_are_differences_without_rare_events() -> None:
    """The largest rate comes first; one event in a thousand operations is noise."""
    before, after = {"fsync": 10.0}, {"fsync": 310.0, "frames": 500.0, "elections": 0.1}

    assert [("frames", 5.0), ("fsync", 3.0)] == list(per_operation(before, after, 100).items())


def test_the_kernel_counts_what_a_process_writes() -> None:
    """A hundred writes add a hundred calls, and pytest may add some."""
    before = of_kernel([os.getpid()])
    with Path(os.devnull).open("wb", buffering=0) as nowhere:
        nowhere.writelines(b"x" for _ in range(100))

    after = of_kernel([os.getpid()])

    assert pytest.approx(100, abs=20) == after["write calls"] - before["write calls"]
