"""Celery elsewhere: a public example and Celery's own tests, on three nodes with leaders killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.acceptance.foreign_workers import WITHIN_S, environment, printed, working
from tests.harness.cluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

FETCHED_WITHIN_S = 180
# A message whose claim a killed node could not answer comes back when its lease ends, in a minute.
GOT_WITHIN_S = 2 * WITHIN_S

# The whole suite takes half an hour: docs/celery.md counts it.
SUITE = (
    "test_canvas.py::test_chain::test_complex_chain",
    "test_canvas.py::test_chain::test_group_results_in_chain",
    "test_tasks.py::test_tasks::test_fail",
    "test_tasks.py::test_tasks::test_reject_with_requeue_redelivers_and_succeeds",
    "test_tasks.py::test_tasks::test_retry_with_unpickleable_exception",
)


@pytest.fixture(scope="module")
def celery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source of the Celery that is installed, with its examples and its tests."""
    place, name = tmp_path_factory.mktemp("celery"), f"celery-{version('celery')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", "celery", "--no-build-isolation", "--dest", str(place)]
    subprocess.run(
        [*command, name.replace("-", "==")], check=True, timeout=FETCHED_WITHIN_S, cwd=place
    )
    with tarfile.open(place / f"{name}.tar.gz") as archive:
        archive.extractall(place, filter="data")
    return place / name


async def _kill_leader(cluster: LocalCluster, shard: int) -> None:
    await cluster.kill(leader := await cluster.leader_of(shard % cluster.shards))
    cluster.start(leader)


@pytest.mark.timeout(300)
async def test_a_public_example_runs_with_its_urls_changed_alone(
    cluster: LocalCluster, celery: Path
) -> None:
    """Its tasks, chains, groups and a chord, while leaders are killed."""
    project = celery / "examples" / "next-steps"
    module = project / "proj" / "celery.py"
    url = environment(cluster)["BROKER_URL"]
    module.write_text(module.read_text().replace("amqp://", url).replace("rpc://", url))
    program = (
        "from celery import chord, group\n"
        "from proj.tasks import add, mul, xsum\n"
        f"within = {GOT_WITHIN_S}\n"
        "print((add.s(2, 2) | mul.s(8)).delay().get(timeout=within), flush=True)\n"
        "print(group(add.s(n, n) for n in range(150))().get(timeout=within)[-1], flush=True)\n"
        "print(chord((mul.s(n, 2) for n in range(20)), xsum.s())().get(timeout=within))\n"
    )
    worker = ("celery", "-A", "proj", "worker", "-c", "2", "-l", "WARNING")
    async with working(cluster, *worker, directory=project), asyncio.timeout(2 * GOT_WITHIN_S):
        running = asyncio.create_task(printed(cluster, "-c", program, directory=project))
        await _kill_leader(cluster, 0)
        await cluster.wait_ready()
        await _kill_leader(cluster, 1)
        answers = await running

    assert ["32", "298", str(2 * sum(range(20)))] == answers.split()


@pytest.mark.timeout(300)
async def test_celerys_own_tests_pass_while_leaders_are_killed(
    cluster: LocalCluster, celery: Path
) -> None:
    """Those of its integration that need no second server."""
    mine = environment(cluster)
    url = mine["BROKER_URL"]
    # As docs/celery.md says of the prefork pool.
    settings = {"worker_pool_putlocks": False}
    (celery / "integration-tests-config.json").write_text(json.dumps(settings))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-v", "-p", "celery.contrib.pytest", "-p", "no:randomly"),
        *(f"t/integration/{each}" for each in SUITE),
        cwd=celery,
        env={**mine, "TEST_BROKER": url, "TEST_BACKEND": url, "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    lines: list[str] = []
    async for line in process.stdout:
        lines.append(line.decode())
        passed = sum(" PASSED" in each for each in lines)
        if " PASSED" in lines[-1] and passed in {1, 3}:
            await _kill_leader(cluster, passed)
    await process.wait()

    assert 0 == process.returncode, "".join(lines)
    assert len(SUITE) == sum(" PASSED" in each for each in lines)
