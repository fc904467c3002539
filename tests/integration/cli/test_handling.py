"""Handling: time limits, back-offs and workers' names by commands, on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from codeq_cluster.testing.broker import LocalBroker

_LIMITS = ("--timeout-seconds", "9", "--backoff", "fixed", "--backoff-base-seconds", "70")


def test_commands_set_limits_and_names(tmp_path: Path) -> None:
    """A topic, a task and a worker say them; the task's attempt shows all of it."""
    with LocalBroker(tmp_path / "broker") as broker:

        def ran(*command: str) -> Any:
            ended = subprocess.run(
                [
                    *(sys.executable, "-m", "codeq_cluster.cli.main", *command),
                    *("--url", broker.url, "--token", broker.token, "--json"),
                ],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert 0 == ended.returncode, ended.stderr
            return json.loads(ended.stdout)

        topic = ran("topic", "put", "slow", *_LIMITS, "--backoff-max-seconds", "90")
        task = ran("task", "create", "--command", "slow", "--payload", "1", *_LIMITS)
        # It reads from a pipe that nobody writes to, so it never ends by itself.
        program = tmp_path / "stuck"
        program.write_text("#!/bin/sh\nmkfifo pipe && read -r _ < pipe\n")
        program.chmod(0o755)
        handling = ("--handler", str(program), "--once", "--timeout-seconds", "1", "--name", "cli")
        ended = ran("worker", "start", "--commands", "slow", *handling)
        after = ran("task", "get", task["id"])

    policy = {"timeoutSeconds": 9, "backoffPolicy": "fixed", "backoffBaseSeconds": 70}
    assert policy | {"backoffMaxSeconds": 90, "weight": 1} == topic["policy"]
    assert policy == {name: task[name] for name in policy}
    assert "returned" == ended["ending"]
    assert after["history"][0]["workerName"].startswith("cli@")
    reason = "HANDLER_TIMEOUT: it ran longer than 1 s, the worker's limit"
    assert reason == after["history"][0]["error"]
