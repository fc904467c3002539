"""Pages: their commands and programs, run as by a reader against a test's broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from codeq_cluster.testing.broker import LocalBroker
from tests.acceptance.runbooks import Block, blocks

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
ENDS_WITHIN_S = 60.0

# Patterns of values that differ between runs: ids, instants, lease tokens, ports, waits.
_VARYING = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "REQUEST"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z"), "INSTANT"),
    (re.compile(r'("shard": ?)\d+'), r"\1N"),
    (re.compile(r'("oldestReadySeconds": ?)\d+'), r"\1N"),
    (re.compile(r"127\.0\.0\.1:\d{4,5}"), "NODE"),
    (re.compile(r"\bport \d{4,5}\b"), "port N"),
)


def page(name: str) -> list[Block]:
    """Return the fenced blocks of a page of docs/, in order."""
    return blocks((DOCS / name).read_text())


def run(broker: LocalBroker, command: list[str], *, directory: Path, exit_code: int = 0) -> str:
    """Run a program or command of a page, and return its output, including errors."""
    ended = subprocess.run(
        command,
        cwd=directory,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(directory),
            "CODEQ_TOKEN": broker.token,
            "CODEQ_BASE_URL": broker.url,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=ENDS_WITHIN_S,
        check=False,
    )
    said = ended.stdout.decode()
    assert exit_code == ended.returncode, f"{command}\n{said}"
    return said


def shell(broker: LocalBroker, script: str, *, directory: Path, exit_code: int = 0) -> str:
    """Run a page's commands, and return their output."""
    return run(
        broker,
        ["bash", "-euo", "pipefail", "-c", addressed(broker, script)],
        directory=directory,
        exit_code=exit_code,
    )


def addressed(broker: LocalBroker, text: str) -> str:
    """Return a page's text with the broker's address and token in place of those of `make up`."""
    text = text.replace("http://127.0.0.1:8080", broker.url).replace(".venv/bin/", "")
    return text.replace("dev-token", broker.token)


def differing(shown: Sequence[str], said: str) -> list[str]:
    """Return the lines in which a page and a program's output differ.

    `…` on the page matches anything; ids, instants and similar values may differ.
    """
    lines = _steady(said).splitlines()
    if len(lines) != len(shown):
        return [*shown, *lines]
    return [
        line
        for wanted, line in zip(shown, lines, strict=True)
        if not re.fullmatch(".*".join(map(re.escape, _steady(wanted).split("…"))), line)
    ]


def _steady(text: str) -> str:
    """Return text with a placeholder for each value that differs between runs."""
    for varying, word in _VARYING:
        text = varying.sub(word, text)
    return text
