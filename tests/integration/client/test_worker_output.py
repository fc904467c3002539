"""Worker's output: what a program with plain logging prints, and how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from codeq_cluster.client import NewTask
from codeq_cluster.testing.broker import LocalBroker

_PROGRAM = """
import logging, sys
from codeq_cluster.client import Fail, Retry, Task, Worker

logging.basicConfig(level=logging.INFO)
url, token, tasks_max = sys.argv[1:]
worker = Worker([url], token=token, name="drawer")

@worker.task("good")
async def good(task: Task[int]) -> str:
    return "done"

@worker.task("broken")
def broken(task: Task[int]) -> str:
    return {}["no\\nkey"]

@worker.task("later")
def later(task: Task[int]) -> str:
    raise Retry("not yet", after=60)

@worker.task("never")
async def never(task: Task[int]) -> str:
    raise Fail("no such picture")

worker.run(tasks_max=int(tasks_max))
"""
_TOKEN = "s3cret-s3cret"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for every test here."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def _run(url: str, token: str, *, tasks_max: int = 1) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, url, token, str(tasks_max)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_each_task_is_one_line_and_a_traceback_stands_once(broker: LocalBroker) -> None:
    """The line has id, command, ending, duration, attempt, worker and error."""
    with broker.sync_client() as client:
        names = ["good", "broken", "broken", "later", "never"]
        attempts = [5, 5, 1, 5, 5]
        made = client.create_many(
            NewTask(name, 1, max_attempts=most) for name, most in zip(names, attempts, strict=True)
        )
    ended = _run(broker.url, broker.token, tasks_max=len(made))
    lines = [line for line in ended.stderr.splitlines() if ":task " in line]
    printed = {
        re.sub(r"drawer@\S+:\d+", "drawer@HOST:PID", re.sub(r"in \d+\.\d{3} s", "in N s", line))
        for line in lines
    }

    assert 0 == ended.returncode, ended.stderr
    assert len(made) == len(lines)
    logger = "codeq_cluster.client.delivery:task"
    by = "by drawer@HOST:PID"
    error = r"KeyError: 'no\nkey'"
    assert printed == {
        f"INFO:{logger} {made[0].id} good: completed in N s, attempt 1 of 5, {by}",
        f"WARNING:{logger} {made[1].id} broken: returned in N s, attempt 1 of 5, {by}: {error}",
        f"ERROR:{logger} {made[2].id} broken: dead in N s, attempt 1 of 1, {by}: {error}",
        f"INFO:{logger} {made[3].id} later: returned in N s, attempt 1 of 5, {by}: not yet",
        f"ERROR:{logger} {made[4].id} never: failed in N s, attempt 1 of 5, {by}: no such picture",
    }
    assert 2 == ended.stderr.count("Traceback"), "one for each task whose handler broke"


def test_a_wrong_token_is_named_in_the_last_line(broker: LocalBroker) -> None:
    """The worker raises the refusal itself, and the token is not printed."""
    ended = _run(broker.url, _TOKEN)

    assert 1 == ended.returncode
    assert (
        "codeq_cluster.client.refusals.Refused: invalid token: "
        f"the argument token has {len(_TOKEN)} characters and is no JWT"
    ) == ended.stderr.splitlines()[-1]
    assert "ExceptionGroup" not in ended.stderr
    assert _TOKEN not in ended.stderr
