"""Log capture: no output of a process bypasses the log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_TALKATIVE = """
import threading, warnings
from codeq_cluster.telemetry import set_up_logs

set_up_logs("info", node="n1")
warnings.warn("two\\nlines", UserWarning)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()

class Lost:
    def __del__(self):
        raise KeyError("lost")

Lost()
raise ValueError("at the end")
"""


def test_warnings_and_uncaught_errors_are_lines_like_any_other() -> None:
    """A program that reads the log meets only JSON lines."""
    ran = subprocess.run(
        [sys.executable, "-c", _TALKATIVE],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=False,
    )

    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    told = [(line["level"], line["exception"].splitlines()[-1]) for line in lines[1:]]
    assert (1, "") == (ran.returncode, ran.stdout)
    assert ("warning", True) == (lines[0]["level"], "two\nlines" in lines[0]["event"])
    assert [
        ("error", "ZeroDivisionError: division by zero"),
        ("error", "KeyError: 'lost'"),
        ("critical", "ValueError: at the end"),
    ] == told
    assert {"n1"} == {line["node"] for line in lines}
