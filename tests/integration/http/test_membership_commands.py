"""Membership commands: their output when a node does not join or does not exist."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.settings import LimitSettings
from codeq_cluster.testing.ports import free_ports
from tests.integration.http.client import OPERATOR, Client, eventually, single
from tests.integration.http.conftest import Running
from tests.integration.http.nodes import Nodes, peers_at, three_nodes

pytestmark = pytest.mark.asyncio(loop_scope="session")

_AT = ("--addr", "127.0.0.1:1", "--http", "http://127.0.0.1:2")


async def _cluster(node: Client, *words: str) -> int:
    target = ("--url", f"http://127.0.0.1:{node.port}", "--token", OPERATOR)
    return await asyncio.to_thread(main, ["cluster", *words, *target])


async def test_a_node_that_does_not_come_is_waited_for_and_named(
    node_with: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends and names the address without an answer; the change can be undone."""
    async with node_with() as node:
        joined = await _cluster(node, "join", "n9", *_AT, "--wait", "1")
        late = capsys.readouterr().err
        removed = await _cluster(node, "remove", "n9")
        gone = capsys.readouterr().err
        again = await _cluster(node, "remove", "n9")

    assert (1, 0, 0) == (joined, removed, again)
    assert "after 1 s no node n9 is connected at 127.0.0.1:1" in late
    assert "n9 is removed" in gone
    assert "n9 is no member: there is nothing to do" in capsys.readouterr().err


async def test_a_node_that_does_not_exist_is_not_replaced(
    node_with: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a misspelt id nor a dry run starts anything."""
    async with node_with() as node:
        misspelt = await _cluster(node, "replace", "nl", "n9", *_AT)
        said = capsys.readouterr().err
        looked = await _cluster(node, "join", "n9", *_AT, "--dry-run")
        shown = (await node.get("admin/cluster", token=OPERATOR)).json

    assert (2, 0) == (misspelt, looked)
    assert "nl is no member of this cluster" in said
    assert ["n1"] == [each["id"] for each in shown["nodes"]]


async def test_a_replacement_waits_for_a_majority_without_the_node_that_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While another node restarts, the new one is not added yet; then it is, by itself."""
    told: list[str] = []

    async def heard() -> str:
        told.append(capsys.readouterr().err)
        return "".join(told)

    # The command waits for the new node, which never comes, until the others stop.
    async with asyncio.TaskGroup() as tasks, three_nodes(tmp_path) as nodes:
        await nodes.stop("n2")
        words = ("replace", "n3", "n9", *_AT, "--wait", "30")
        replaced = tasks.create_task(_cluster(nodes.clients["n1"], *words))
        await eventually(heard, lambda said: "waiting until n3 may go" in said or replaced.done())
        before = await _ids(nodes.clients["n1"])
        await nodes.start("n2")
        await eventually(heard, lambda said: "n9 is added: start it" in said or replaced.done())
        after = await _ids(nodes.clients["n1"])

    assert (["n1", "n2", "n3"], ["n1", "n2", "n3", "n9"]) == (before, after)
    assert "without n3 only 1 of 2 voters would answer" in "".join(told)


async def _ids(node: Client) -> list[str]:
    shown = (await node.get("admin/cluster", token=OPERATOR)).json
    return [each["id"] for each in shown["nodes"]]


async def test_the_only_node_is_replaced_by_asking_the_new_one_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old one cannot remove itself, but the new one votes by then; nothing is done twice."""
    ports = dict(zip(("n1", "n2"), free_ports(2), strict=True))
    first, second = peers_at(ports)
    nodes = Nodes({})
    for each, peers in ((first, (first,)), (second, (first, second))):
        alone = single(tmp_path / each.id, LimitSettings())
        nodes.settings[each.id] = replace(
            alone, node_id=each.id, peers=peers, link_port=ports[each.id]
        )
    async with contextlib.AsyncExitStack() as stack:
        for name in ports:
            await nodes.start(name)
            stack.push_async_callback(nodes.stop, name)
        await nodes.ready("n1")
        old, new = nodes.clients["n1"], nodes.clients["n2"]
        words = ("replace", "n1", "n2", "--addr", second.link, "--http", second.http)
        begun = await _cluster(old, *words)
        told = capsys.readouterr().err
        voting = (await new.get("admin/cluster", token=OPERATOR)).json
        done = await _cluster(new, *words)
        left = (await new.get("admin/cluster", token=OPERATOR)).json

    assert (1, 0) == (begun, done)
    assert f"to remove n1, run this again with --url {second.http}" in told
    assert ["n1", "n2"] == [each["id"] for each in voting["nodes"] if each["voter"]]
    assert ["n2"] == [each["id"] for each in left["nodes"]]
