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
    """The site's code enqueues; the relay and the worker run as the page says."""
    text = _PAGE.read_text()
    settings, task, calls, outbox, order = re.findall(
        r"^```python\n(.+?)^```$", text, re.MULTILINE | re.DOTALL
    )
    checks, works, *outboxes = re.findall(r"^python (manage\.py .+)$", text, re.MULTILINE)
    migrate, relay, shows, retries = outboxes
    env = {**os.environ, "CODEQ_URL": url}
    del env["DJANGO_SETTINGS_MODULE"]

    def run(command: str, *more: str) -> str:
        whole = (sys.executable, *shlex.split(command), *more)
        done = subprocess.run(
            whole, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=60
        )
        return done.stdout.decode()

    run("-m django startproject shop .")
    configuration = tmp_path / "shop" / "settings.py"
    begun = configuration.read_text()
    configuration.write_text(f"{begun}\nimport os\n{settings}")
    (tmp_path / "shop" / "tasks.py").write_text(task)

    assert "no issues" in run(checks)
    configuration.write_text(f"{configuration.read_text()}{outbox}INSTALLED_APPS += ['shop']\n")
    (tmp_path / "shop" / "models.py").write_text(
        "from django.db import models, transaction\n"
        "class Order(models.Model): number = models.IntegerField()\n"
        f"{order}"
    )
    run(migrate, "--run-syncdb")
    enqueue, read = calls.splitlines()
    program = f"from shop.tasks import *\nfrom shop.models import order\n{enqueue}\norder(8)\n"
    result_id = run("manage.py shell -v 0 -c", f"{program}print(result.id)").strip()
    assert run(shows).startswith("2 rows wait")
    assert "2\n" == run(relay, "--once")
    assert "0 rows wait again\n" == run(retries)
    run(works, "--tasks-max", "1")
    again = read.replace("result.id", repr(result_id)).replace(".status", ".return_value")
    value = run("manage.py shell -v 0 -c", f"from shop.tasks import *\nprint({again})")
    with broker.sync_operator() as operator:
        [made] = operator.tasks(command="send-receipt").rows
    assert ("receipt of 7\n", "order-8") == (value, made["key"])
