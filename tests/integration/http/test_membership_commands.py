"""Membership commands: their output when a node does not join or does not exist."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.cli.main import main
from tests.integration.http.client import OPERATOR, Client
from tests.integration.http.conftest import Running

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
