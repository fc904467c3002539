"""Django's page: its settings, its task and its commands, in a project that Django has made."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from codeq_cluster.testing.broker import LocalBroker

_PAGE = Path(__file__).parents[3] / "docs" / "django.md"


def test_the_pages_snippets_and_commands_work_in_a_new_project(
    tmp_path: Path, url: str, broker: LocalBroker
) -> None:
    """A task is enqueued by the site's code, run by the worker's command, and read again."""
    text = _PAGE.read_text()
    settings, task, *calls = re.findall(r"^```python\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    checks, works = re.findall(r"^python (manage\.py .+)$", text, re.MULTILINE)
    env = {**os.environ, "CODEQ_URL": url}
    del env["DJANGO_SETTINGS_MODULE"]

    def run(command: str, *more: str) -> str:
        whole = (sys.executable, *shlex.split(command), *more)
        done = subprocess.run(
            whole, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=60
        )
        return done.stdout.decode()

    run("-m django startproject shop .")
    with (tmp_path / "shop" / "settings.py").open("a") as file:
        file.write(f"import os\n{settings}")
    (tmp_path / "shop" / "tasks.py").write_text(task)
    enqueue, read = calls[0].splitlines()
    program = f"from shop.tasks import *\n{enqueue}\n"

    assert "no issues" in run(checks)
    result_id = run("manage.py shell -v 0 -c", f"{program}print(result.id)").strip()
    with broker.sync_client() as client:
        assert "mail" == client.task(result_id).command
    run(works, "--tasks-max", "1")
    again = read.replace("result.id", repr(result_id)).replace(".status", ".return_value")
    value = run("manage.py shell -v 0 -c", f"from shop.tasks import *\nprint({again})")
    assert "receipt of 7\n" == value
