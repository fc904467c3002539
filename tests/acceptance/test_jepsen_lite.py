"""jepsen-lite: a short run with real nodes, clients and faults, judged by its checkers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jepsen_lite.checker.judging import Exit
from jepsen_lite.doctor import available, shim_works
from jepsen_lite.mixes import WORKLOADS
from jepsen_lite.network import namespaces_work
from jepsen_lite.report import write
from jepsen_lite.running import Options, run
from tests.system_tools import LEFT_OUT

FAULTS = ("kill", "power", "pause", "partition", "hostile")
SECONDS = 45.0
# A wide bound, because other tests share the machine; the promises have bounds in seconds.
CALM_P99_MS = 3000
# A run with an unknown verdict is repeated: the machine was too busy, or a leader changed before
# the first fault.
RUNS_MAX = 3


@pytest.mark.timeout(900)
@pytest.mark.uses("gcc", "ip")
async def test_a_short_run_keeps_every_promise(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    """Tasks go through all their states, under each fault that this machine can inject.

    If CI is true, all of these faults are required: a missing tool fails the test.
    """
    caplog.set_level(logging.INFO, logger="jepsen_lite")
    nemeses, lacking = available(FAULTS, require=os.environ.get("CI") == "true")
    for reason in set(lacking.values()):
        record_property(LEFT_OUT, reason)
    options = Options(
        workload="lifecycle",
        nemeses=nemeses,
        nodes=3,
        shards=WORKLOADS["lifecycle"].shards,
        seconds=SECONDS,
        rate=0,
        seed=1,
        source=str(Path(__file__).parents[2]),
        calm_p99_ms=CALM_P99_MS,
        loopback=bool(namespaces_work()),
        shimmed=not shim_works("disk"),
    )

    for attempt in range(RUNS_MAX):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        judgement = await run(options, directory)
        write(directory)
        if judgement.exit is not Exit.UNKNOWN:
            break

    told = [f"{each.guarantee}: {each}" for each in judgement.verdicts if each.valid is not True]
    assert judgement.exit is Exit.VALID, "\n".join([*judgement.shortcomings, *told])
    assert (directory / "report.html").stat().st_size > 10_000
