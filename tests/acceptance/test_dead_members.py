"""A dead member is found by every command that looks at a cluster, whichever nodes it is given."""

from __future__ import annotations

import re

import pytest

from tests.harness.cluster import LocalCluster
from tests.harness.commands import Ended, command
from tests.harness.node_process import OPERATOR_TOKEN
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _ran(url: str, *words: str) -> Ended:
    return await command(*words, "--url", url, token=OPERATOR_TOKEN, within_s=60.0)


async def test_a_dead_member_that_was_not_named_is_found(cluster: LocalCluster) -> None:
    """One node's URL is enough: status, doctor and cluster status name it, and end with 1."""
    url = cluster.urls["n1"]
    whole = await _ran(url, "status", "--json")
    sound = await _ran(url, "doctor", "--json")
    await cluster.kill("n3")

    async def noticed() -> Ended | None:
        ended = await _ran(url, "cluster", "status")
        return ended if ended.code else None

    members = await until(noticed, what="n1 notices", within_s=30.0)
    status = await _ran(url, "status")
    rows = await _ran(url, "status", "--json")
    checked = await _ran(url, "doctor", "--json")

    assert ["n1", "n2", "n3"] == [node["id"] for node in whole.document["nodes"]]
    assert (0, 0) == (whole.code, sound.code), sound.out
    assert (1, 1, 1, 1) == (members.code, status.code, rows.code, checked.code)
    away = rows.document["nodes"][2]
    assert ("n3", cluster.urls["n3"], False) == (away["id"], away["url"], away["healthy"])
    assert away["awaySince"]
    assert f"n1 and n2 cannot reach it since {away['awaySince']}" in away["problem"]
    assert re.search(r"^n3 .* no +20\S+ \S+ ", members.out, re.MULTILINE), members.out
    assert [True] == [line.startswith("n3 ") for line in status.out.splitlines() if "since" in line]
    failed = [each for each in checked.document["findings"] if each["level"] == "fail"]
    assert ["member"] == [each["check"] for each in failed]
    assert failed[0]["text"].startswith("n3: n1 and n2 cannot reach it since ")
