"""Reports: one self-contained page that shows each violation with its events."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from jepsen_lite.checker.validity import Demands
from jepsen_lite.cli import main
from jepsen_lite.history import dump
from jepsen_lite.ledger import enter, line_of
from jepsen_lite.report import write
from jepsen_lite.running import Options, Run, check, command_of
from jepsen_lite.simulated import Flaw, history


def recorded(directory: Path, options: Options, *, flaw: Flaw | None) -> Path:
    """Write a run of a simulated broker into a directory, with the files of a real one."""
    options = replace(options, nodes=1, seconds=30, seed=3)
    about = Run(
        options=options,
        begun="2026-01-01T00:00:00+00:00",
        commit="0" * 12,
        tree="1" * 40,
        host="none",
        python="3.11",
        network="none",
        demands=Demands(ok={}, faults={}),
        command=command_of(options),
    )
    (directory / "run.json").write_bytes(msgspec.json.encode(about))
    dump(history(3, creates=80, flaw=flaw), directory / "history.ndjson")
    return directory


def test_a_page_shows_the_broken_guarantee(tmp_path: Path, options: Options) -> None:
    """The page has the verdict, the broken guarantee with its events, and how to repeat the run."""
    page = write(recorded(tmp_path, options, flaw=Flaw.LOSES)).read_text()

    assert '<h2 id="G1">G1 broken' in page
    assert "was acknowledged and is gone" in page
    assert '<span class="verdict violation">violation</span>' in page
    assert "python -m jepsen_lite run -w lifecycle -n kill" in page
    assert page.count("<svg") >= 5


def test_a_page_needs_nothing_else(tmp_path: Path, options: Options) -> None:
    """The page fetches no script, style, image or font."""
    page = write(recorded(tmp_path, options, flaw=None)).read_text()

    assert not re.search(r"<script|<link|<img|@import|url\(|src=", page)
    assert not re.search(r'href="[^#]', page)
    assert "broken" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_a_run_that_is_judged_again_gets_the_same_verdicts(
    tmp_path: Path, options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` writes the verdicts down and ends with their exit status."""
    status = main(["check", str(recorded(tmp_path, options, flaw=Flaw.LOSES))])
    written = json.loads((tmp_path / "results.json").read_text())

    assert 1 == status
    assert "violation" == written["exit"]
    assert "G1" in {v["guarantee"] for v in written["verdicts"] if v["valid"] is False}
    assert "was acknowledged and is gone" in capsys.readouterr().out


def test_the_ledger_has_a_line_a_run(tmp_path: Path, options: Options) -> None:
    """Each line has the seed, the verdict and the state of the product."""
    directory = recorded(tmp_path, options, flaw=Flaw.LOSES)
    for _ in range(2):
        enter(line_of(directory, check(directory)), tmp_path / "ledger.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]

    assert 2 == len(lines)
    assert 3 == lines[0]["seed"]
    assert ("0" * 12, "1" * 40) == (lines[0]["commit"], lines[0]["tree"])
    assert "violation" == lines[0]["verdict"]
    assert lines[0]["acknowledged"] > 80


def test_a_crash_of_the_harness_is_no_violation(tmp_path: Path) -> None:
    """A crash has its own exit status."""
    assert 3 == main(["check", str(tmp_path / "nothing")])
