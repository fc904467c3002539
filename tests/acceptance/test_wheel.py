"""Wheel: what users install, in an empty environment and beside an application with other pins."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from codeq_cluster.testing.ports import free_ports
from tests.harness.cluster import LocalCluster
from tests.harness.http import fetch
from tests.harness.node_process import ADMIN_TOKEN, OPERATOR_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.servers import Server
from tests.harness.waiting import until
from tests.harness.wheel import PROJECT, ROOT, Environment, build, lines

pytestmark = pytest.mark.timeout(900)

APPLICATION = Path(__file__).with_name("application.py")
STOP_WITHIN_S = 30.0
_RANGE = re.compile(r"([\w-]+)>=([\d.]+),<\d+")
_PIN = re.compile(r"([\w-]+)==([\d.]+)")
_RANGES = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cli"]]
LOWEST = dict(_RANGE.findall(" ".join(_RANGES)))
_PINS = dict(_PIN.findall(" ".join(PROJECT["optional-dependencies"]["server"])))
NEWEST = {name: _PINS[name] for name in LOWEST}
# What an application may have beside each; two years lie between them.
OLD = {"fastapi": "0.110.0", "uvicorn": "0.27.0"}
NEW = {"fastapi": "0.165.0", "uvicorn": "0.54.0"}
ASKED = {
    "task create --command unheard --payload {}": PRODUCER_TOKEN,
    "queue ls": ADMIN_TOKEN,
    "status": OPERATOR_TOKEN,
    "top --once": ADMIN_TOKEN,
    "cluster status": OPERATOR_TOKEN,
}
# Commands that work on nodes and their files, or on credentials.
OF_SERVER = {
    *("dev", "node", "backup", "restore", "import", "inspect", "repair"),
    *("config", "token", "doctor"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run one node."""
    async with LocalCluster(tmp_path_factory.mktemp("broker"), nodes=1, shards=1) as running:
        yield running


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def client_alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Install the package without extras."""
    empty = Environment(tmp_path_factory.mktemp("client"))
    empty.install(str(wheel), pins=NEWEST)
    return empty


@pytest.fixture(scope="module", params=["lowest", "newest"])
def beside(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Install the package and its commands beside an application, at one end of its ranges."""
    pins = LOWEST | OLD if request.param == "lowest" else NEWEST | NEW
    both = Environment(tmp_path_factory.mktemp(request.param))
    both.install(f"codeq-cluster[cli] @ {wheel.as_uri()}", *NEW, pins=pins)
    return both


def test_the_wheel_holds_the_package_alone(wheel: Path) -> None:
    """Each file of the package is in it, and nothing beside the package."""
    package = ROOT / "codeq_cluster"
    texts = [path for path in package.rglob("*") if path.suffix in {".py", ".js", ".css", ".html"}]

    counted = lines(wheel)

    assert sum(len(path.read_bytes().splitlines()) for path in texts) == sum(
        counted[suffix] for suffix in (".py", ".js", ".css", ".html")
    )


def test_the_client_imports_no_part_of_the_broker(client_alone: Environment) -> None:
    """An environment has what the client needs, and the client needs nothing of the server's."""
    program = (
        "import json, sys, codeq_cluster.client; "
        "print(json.dumps([each for each in sys.modules if each.startswith('codeq_cluster.')]))"
    )

    imported = json.loads(client_alone.run("python", "-c", program).stdout)
    broker = client_alone.run("python", "-c", "import codeq_cluster.node.compose")

    assert "codeq_cluster.client.worker" in imported
    assert {"client", "errors", "portions"} == {name.split(".")[1] for name in imported}
    assert "ModuleNotFoundError" in broker.stderr


@pytest.mark.parametrize(("command", "extra"), [("queue", "cli"), ("node", "server")])
def test_a_command_says_which_extra_it_needs(
    client_alone: Environment, command: str, extra: str
) -> None:
    """The program's entry is there without them."""
    ended = client_alone.run("codeq-cluster", command)
    helped = client_alone.run("codeq-cluster", "--help")

    assert (1, "") == (ended.returncode, ended.stdout)
    needed = f"needs more than the client: pip install '/path/to/checkout[{extra}]'"
    assert f"codeq-cluster: {needed}\n" == ended.stderr
    assert 0 == helped.returncode
    assert command in helped.stdout


@pytest.mark.asyncio(loop_scope="module")
async def test_a_worker_runs_beside_an_application_with_other_pins(
    beside: Environment, broker: LocalCluster, tmp_path: Path
) -> None:
    """Coroutines and threads create tasks and work on them; a stop is clean."""
    with serving(beside, broker.urls["n1"], tmp_path / "application.log") as (url, server):

        async def up() -> bool:
            assert server.running, server.log_path.read_text()
            answer = await asyncio.to_thread(_post, url, "/greetings/ada")
            return b'{"greeting":"hello ada"}' == answer

        await until(up, what="the application serves")

        assert b'{"greeting":"HELLO BOB"}' == await asyncio.to_thread(_post, url, "/shouts/bob")
        # A newer uvicorn ends by the signal itself.
        assert server.stop(within_s=STOP_WITHIN_S) in {0, -signal.SIGTERM}
    assert "" == server.log_path.read_text()


@pytest.mark.asyncio(loop_scope="module")
async def test_commands_that_speak_to_a_cluster_need_no_broker(
    beside: Environment, broker: LocalCluster
) -> None:
    """They work with the extra `cli`, and the rest names the extra `server`."""
    url = broker.urls["n1"]

    helped = await asyncio.to_thread(beside.run, "codeq-cluster", "--help")
    said = {
        words: await asyncio.to_thread(
            beside.run, "codeq-cluster", *words.split(), "--url", url, token=token
        )
        for words, token in ASKED.items()
    }
    completion = await asyncio.to_thread(beside.run, "codeq-cluster", "completion", "bash")

    needing = re.findall(r"^    ([a-z]+) +needs more", helped.stdout, re.MULTILINE)
    assert OF_SERVER == set(needing)
    assert dict.fromkeys(said, 0) == {words: ended.returncode for words, ended in said.items()}, [
        ended.stderr for ended in said.values()
    ]
    assert "unheard" in said["queue ls"].stdout
    assert "_codeq_cluster_task_create" in completion.stdout


@contextmanager
def serving(env: Environment, broker: str, log: Path) -> Iterator[tuple[str, Server]]:
    """Run the application; yield its base URL and its process."""
    (port,) = free_ports(1)
    server = Server(log)
    server.start(
        [str(env.bin / "python"), str(APPLICATION)],
        env.variables(
            BROKER=broker,
            PRODUCER=PRODUCER_TOKEN,
            WORKER=WORKER_TOKENS["worker-1"],
            PORT=str(port),
        ),
        cwd=log.parent,
    )
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.kill()


def _post(url: str, path: str) -> bytes:
    """Return the body of an answer; empty if nobody answers."""
    try:
        return fetch("POST", url, path).body
    except ConnectionError:
        return b""
