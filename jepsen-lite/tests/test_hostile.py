"""Hostile: its attacks are bounded and reach real nodes, and a neighbour is served beside them."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jepsen_lite.db import HOSTILE_TOKEN, HTTP_PORT, TOKENS, Db
from jepsen_lite.hostile import (
    AT_ONCE,
    ATTACKS,
    CONNECTIONS_MAX,
    IMPORT,
    Hostile,
    arsenal,
    impossible,
    shared,
)
from jepsen_lite.nemesis import Links, PlannedFault
from jepsen_lite.network import LoopbackNetwork
from jepsen_lite.running import HOME
from tests.harness.arsenal import Loot, loot
from tests.harness.http import HttpClient
from tests.harness.tenant_floods import tenant_floods
from tests.harness.waiting import until


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Db]:
    """Run a node with the settings of a hostile run."""
    network = LoopbackNetwork(["n1"])
    async with Db(
        tmp_path,
        network,
        ["n1"],
        shards=1,
        source=HOME.parent,
        shimmed=False,
        settings=Hostile.settings,
    ) as db:
        yield db
    await network.close()


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_an_attack_is_bounded_on_however_many_nodes(nodes: int) -> None:
    """All nodes together never have more connections of an attack than its bound."""
    every = arsenal(random.Random(1), receiver="127.0.0.1", looted=Loot()).values()
    bounded = [shared(each, nodes) for each in every]

    assert all(0 < each.connections * nodes <= CONNECTIONS_MAX for each in bounded)
    assert any(each.connections * nodes == CONNECTIONS_MAX for each in bounded)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_every_attacked_node_has_to_refuse_connections(nodes: int) -> None:
    """Idle connections below a share would leave no sign that the attack reached the node."""
    every = arsenal(random.Random(1), receiver="127.0.0.1", looted=Loot())
    limits = Hostile.settings["limits"]

    assert isinstance(limits, dict)
    assert shared(every["connections"], nodes).connections > limits["connectionsMax"] // 2


async def test_every_attack_has_its_turn_before_one_has_two(db: Db) -> None:
    """The seed decides the order."""
    hostile, again = (Hostile(db, Links(db)) for _ in range(2))
    rng, same = random.Random(7), random.Random(7)
    bursts = [await hostile.plan(rng) for _ in range(len(ATTACKS) // AT_ONCE)]
    repeated = [await again.plan(same) for _ in bursts]

    assert {1} == set(Counter(a for each in bursts for a in each.detail.split(", ")).values())
    assert len(ATTACKS) - len(bursts) * AT_ONCE < AT_ONCE
    assert bursts == repeated


async def test_an_upload_of_the_attack_is_begun(db: Db) -> None:
    """With a lease and a store, a node takes bytes of it; without, it would refuse the head."""
    looted = await loot(db.urls["n1"], HOSTILE_TOKEN)
    head = f"/v1/codeq/tasks/{looted.leased}/artifacts/a"
    async with HttpClient() as http:
        answer = await http.send("PUT", db.urls["n1"], head, body=b"x", token=HOSTILE_TOKEN)

    assert 201 == answer.status
    assert "codeq" in looted.cookie


async def test_floods_of_a_tenant_are_taken(db: Db) -> None:
    """A flood that is refused as no request or as not allowed would attack nothing."""
    looted = await loot(db.urls["n1"], HOSTILE_TOKEN)
    node = db.nodes["n1"]
    answered = {}
    for each in tenant_floods(random.Random(1), HOSTILE_TOKEN, looted.leased):
        reader, writer = await asyncio.open_connection(node.host, HTTP_PORT)
        writer.write(each.first)
        seen = b""
        while len(found := re.findall(rb"HTTP/1.1 (\d+)", seen)) < each.answers:
            received = await reader.read(2**16)
            assert received, f"{each.name}: {seen[-500:]!r}"
            seen += received
        writer.close()
        answered[each.name] = {int(status) for status in found}

    refused = {400, 401, 403, 404, 413, 422}

    assert {} == {name: seen for name, seen in answered.items() if seen & refused}
    assert all(min(seen) < 300 for seen in answered.values())


async def test_an_import_is_refused_for_the_field_that_is_wrong(db: Db) -> None:
    """An import that is refused for anything else would attack nothing."""
    async with HttpClient() as http:
        for field, body in impossible().items():
            url, token = db.urls["n1"], HOSTILE_TOKEN
            answer = await http.send("POST", url, IMPORT, body=body, token=token)

            assert 400 == answer.status
            assert f"{field}: " in answer.json["error"]


@pytest.mark.timeout(180)
async def test_attacks_reach_a_node_that_runs_and_no_other(db: Db) -> None:
    """A neighbour is served beside each; on a dead node no attack counts."""
    hostile = Hostile(db, Links(db))
    served = []
    async with HttpClient() as http:
        for n in range(0, len(ATTACKS), AT_ONCE):
            planned = PlannedFault(nodes=("n1",), detail=", ".join(ATTACKS[n : n + AT_ONCE]))

            async def struck(planned: PlannedFault = planned) -> bool:
                return hostile.struck(planned) > 0

            await hostile.begin(planned)
            await until(struck, what=planned.detail)
            answer = await http.send(
                "POST",
                db.urls["n1"],
                "/v1/codeq/tasks",
                body=b'{"command":"work","payload":1}',
                token=TOKENS.producer,
            )
            served.append((answer.status, await hostile.end(planned)))
    await db.kill("n1")
    await hostile.begin(planned)
    in_vain = await hostile.end(planned)

    assert [(202, 1)] * len(range(0, len(ATTACKS), AT_ONCE)) == served
    assert 0 == in_vain
