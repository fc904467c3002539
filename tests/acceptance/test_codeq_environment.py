"""Nodes started with the environment of a codeQ Raft cluster."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from codeq_cluster.testing.ports import free_ports
from tests.codeq import configurations
from tests.harness.client import RecordingClient
from tests.harness.commands import PROGRAM, command, command_environment
from tests.harness.node_process import START_WITHIN_S, STOP_WITHIN_S
from tests.harness.servers import Server
from tests.harness.waiting import until

TOKEN = "one-token"


def _here(directory: Path) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return each node's environment and base URL, with this machine's ports and paths.

    Everything else stays the same; only the cluster's secret is added.
    """
    found = configurations.raft_environments()
    ports = iter(free_ports(2 * len(found)))
    links = {name: next(ports) for name in found}
    https = {name: next(ports) for name in found}
    for name, variables in found.items():
        for variable, value in variables.items():
            text = value
            for peer in found:
                text = text.replace(f"{peer}:7000", f"127.0.0.1:{links[peer]}")
                text = text.replace(f"{peer}:8080", f"127.0.0.1:{https[peer]}")
            text = text.replace("/var/lib/codeq/pebble", str(directory / name))
            variables[variable] = text.replace("/var/lib/codeq", str(directory))
        variables["PORT"] = str(https[name])
        variables["RAFT_BIND_ADDR"] = f":{links[name]}"
        variables.update(configurations.CLUSTER_SECRET)
    return found, {name: f"http://127.0.0.1:{port}" for name, port in https.items()}


@asynccontextmanager
async def _node(variables: Mapping[str, str], log: Path) -> AsyncIterator[None]:
    """Run a node with only this environment; its log is in the file."""
    node = Server(log)
    node.start([*PROGRAM, "node"], command_environment(variables=variables))
    try:
        yield
        assert 0 == await asyncio.to_thread(node.stop, within_s=STOP_WITHIN_S)
    finally:
        node.kill()


async def test_nodes_start_with_the_environment_of_a_raft_cluster_of_codeq(tmp_path: Path) -> None:
    """The nodes accept codeQ's tokens, keep its artifacts, and log unused variables once."""
    variables, urls = _here(tmp_path)
    async with AsyncExitStack() as running, RecordingClient(urls) as client:
        for name, each in variables.items():
            await running.enter_async_context(_node(each, tmp_path / f"{name}.log"))

        async def led() -> bool:
            answers = [await client.call("GET", name, "/raft/status", TOKEN) for name in urls]
            return all(
                answer.status == 200 and all(group["hasLeader"] for group in answer.body["groups"])
                for answer in answers
            )

        await until(led, within_s=START_WITHIN_S, what="leaders that every node knows")
        await client.created("left", TOKEN, "RENDER", payload={"page": 1})
        claimed = await client.claimed("middle", TOKEN, ["RENDER"])
        page = {"name": "page.txt", "contentBase64": base64.b64encode(b"done").decode()}
        path = f"/tasks/{claimed['id']}/result"
        result = {"status": "COMPLETED", "result": {}, "artifacts": [page]}
        await client.done("POST", "right", path, TOKEN, result, repeatable=True)
        read = await client.done("GET", "left", path, TOKEN)

    assert "shop" == claimed["tenantId"]
    assert 4 == claimed["maxAttempts"]
    assert ["page.txt"] == [each["name"] for each in read["result"]["artifacts"]]
    assert list((tmp_path / "artifacts").rglob("page.txt"))
    for name in variables:
        lines = [json.loads(line) for line in (tmp_path / f"{name}.log").read_text().splitlines()]
        named = [line["key"] for line in lines if line["event"] == "setting of codeQ"]
        assert sorted(configurations.RAFT_NAMED) == sorted(named)
        assert {line["level"] for line in lines} <= {"warning", "error"}


async def test_config_shows_how_a_node_reads_that_environment(tmp_path: Path) -> None:
    """It prints the effective values with their variables, and the fate of the other ones."""
    variables, _ = _here(tmp_path)
    shown = await command("config", "--json", variables=variables["middle"])

    rows = {row["key"]: (row["value"], row["source"]) for row in shown.document}
    assert 0 == shown.code
    assert (
        variables["middle"]["RAFT_BIND_ADDR"],
        "environment RAFT_BIND_ADDR",
    ) == rows["raft.bindAddr"]
    assert ("warning", "environment LOG_LEVEL") == rows["logLevel"]
    assert str(tmp_path / "middle") == rows["persistenceConfig.path"][0]
    assert ("local", "environment LOCAL_ARTIFACTS_DIR") == rows["artifacts.provider"]
    assert (
        "the shards always share one link; ignored",
        "environment RAFT_MUX_ENABLED",
    ) == rows["raft.muxEnabled"]
    assert configurations.RAFT_NAMED <= rows.keys()
    assert TOKEN not in shown.out
