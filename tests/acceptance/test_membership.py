"""Membership: nodes lose their disks, join and leave, while producers and workers go on."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from codeq_cluster.cli.main import main
from codeq_cluster.testing.ports import free_ports
from tests.harness.accounting import audit
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.commands import command
from tests.harness.http import HttpClient
from tests.harness.load import Load, workers
from tests.harness.node_process import OPERATOR_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.partition import LinkProxies
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTLES_S = 60.0


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Run three nodes of two shards."""
    async with LocalCluster(tmp_path, shards=2) as running:
        yield running


def under_load(cluster: LocalCluster) -> Load:
    """Return producers and workers that ask every current node."""
    return Load(
        cluster.urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=workers(WORKER_TOKENS, 6),
        command="membership",
        cycles_per_s=20,
    )


async def administer(
    cluster: LocalCluster, node: str, path: str, body: dict[str, object] | None = None
) -> tuple[int, Any]:
    """Send a request of the cluster's operators to a node."""
    method = "GET" if body is None else "POST"
    async with RecordingClient(cluster.urls) as client:
        answer = await client.call(method, node, f"/admin/{path}", OPERATOR_TOKEN, body)
    assert answer.status, answer.detail
    return answer.status, answer.body


async def change(cluster: LocalCluster, node: str, path: str, body: dict[str, object]) -> None:
    """Ask a node for a change of membership; repeat while the answer is retryable."""

    async def done() -> bool:
        status, answer = await administer(cluster, node, path, body)
        assert status == 200 or answer["retryable"], answer
        return status == 200

    await until(done, what=f"{path} of {body}")


async def voters(cluster: LocalCluster, node: str) -> list[set[str]]:
    """Return the voters of each shard, as a node has them."""
    _, seen = await administer(cluster, node, "cluster")
    own = next(each["id"] for each in seen["nodes"] if each["self"])
    votes = {each["id"] for each in seen["nodes"] if each["voter"]}
    return [
        {peer["id"] for peer in shard["peers"] if peer["voter"]} | ({own} & votes)
        for shard in seen["shards"]
    ]


async def all_vote(cluster: LocalCluster, node: str, wanted: set[str]) -> None:
    """Wait until exactly these nodes vote in every shard."""

    async def do() -> bool:
        return all(found == wanted for found in await voters(cluster, node))

    await until(do, what=f"{wanted} vote")


async def tells_it_is_none(cluster: LocalCluster, node: str) -> bool:
    """Return whether a node reports for every shard that it is no member."""
    async with HttpClient() as http:
        missing = (await http.send("GET", cluster.urls[node], "/readyz")).json.get("missing", [])
    return bool(missing) and all(f"{node} is no member of this cluster" in line for line in missing)


async def test_a_node_that_lost_its_disk_is_a_voter_again(
    cluster: LocalCluster,
) -> None:
    """It recovers by itself under load; then the cluster survives the loss of another disk."""
    async with under_load(cluster) as load:
        for lost in ("n2", "n3"):
            load.avoid(lost)
            await cluster.kill(lost)
            shutil.rmtree(cluster.nodes[lost].data_path)
            cluster.start(lost)
            await cluster.wait_ready([lost], within_s=SETTLES_S)
            load.allow(lost)
            await all_vote(cluster, "n1", {"n1", "n2", "n3"})
        assert await load.drain(within_s=SETTLES_S)
        verdict = audit(load.calls, await load.final_tasks())
    assert verdict.clean, verdict


async def test_a_cluster_grows_and_shrinks_under_load(cluster: LocalCluster) -> None:
    """Two nodes join, then the first two leave, leaders among them: nothing is lost or doubled."""
    async with under_load(cluster) as load:
        for number in (4, 5):
            node = cluster.configure(f"n{number}")
            cluster.start(node.id)
            addr = f"127.0.0.1:{node.link_port}"
            body = {"nodeId": node.id, "addr": addr, "httpAddr": node.url}
            await change(cluster, "n3", "cluster/join", body)
            await cluster.wait_ready([node.id], within_s=SETTLES_S)
        await all_vote(cluster, "n3", {"n1", "n2", "n3", "n4", "n5"})
        for node_id in ("n1", "n2"):
            load.avoid(node_id)
            await change(cluster, "n3", "cluster/remove", {"nodeId": node_id})
            await until(
                lambda gone=node_id: tells_it_is_none(cluster, gone),
                what=f"{node_id} says that it is no member",
            )
            await cluster.stop(node_id)
        await all_vote(cluster, "n4", {"n3", "n4", "n5"})
        assert await load.drain(within_s=SETTLES_S)
        verdict = audit(load.calls, await load.final_tasks())
    assert verdict.clean, verdict
    # The new nodes have all data, so the last of the first three may leave.
    await cluster.kill("n3")
    await cluster.leader_of(0, among=["n4", "n5"])


async def test_a_replacement_goes_on_whatever_dies_in_between(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The joining learner dies, then the leader that added it; the command is repeated."""
    async with under_load(cluster) as load:
        node = cluster.configure("n4")
        replace = ["cluster", "replace", "n3", "n4", "--url", cluster.nodes["n2"].url]
        replace += ["--addr", f"127.0.0.1:{node.link_port}", "--http", node.url]
        replace += ["--token", OPERATOR_TOKEN]
        ahead = await asyncio.to_thread(main, [*replace, "--dry-run", "--json"])
        then = json.loads(capsys.readouterr().out)["then"]
        begun = await asyncio.to_thread(main, [*replace, "--wait", "1"])
        told = capsys.readouterr().err
        load.avoid("n1")
        await cluster.kill("n1")
        cluster.start("n4")
        cluster.start("n1")
        await cluster.kill("n4")
        await cluster.wait_ready(["n1"], within_s=SETTLES_S)
        load.allow("n1")
        still = await voters(cluster, "n2")
        cluster.start("n4")
        load.avoid("n3")
        done = await asyncio.to_thread(main, [*replace, "--wait", "60"])
        assert 0 == done, capsys.readouterr().err
        await all_vote(cluster, "n2", {"n1", "n2", "n4"})
        await cluster.stop("n3")
        assert await load.drain(within_s=SETTLES_S)
        verdict = audit(load.calls, await load.final_tasks())

    assert (0, 1) == (ahead, begun)
    assert [["n1", "n2", "n4"]] * 2 == [each["votersAfter"] for each in then]
    assert [(3, 2)] * 2 == [(each["quorum"], each["quorumAfter"]) for each in then]
    assert "n3 stays until then: run this again" in told
    assert all({"n1", "n2", "n3"} <= each for each in still)
    assert verdict.clean, verdict


async def test_a_node_need_know_one_member_only(cluster: LocalCluster) -> None:
    """That member leads nothing but sends it the others' addresses; the leaders send their logs."""
    leaders = {await cluster.leader_of(shard) for shard in (0, 1)}
    told_of = min(cluster.nodes.keys() - leaders)
    node = cluster.configure("n4")
    config = yaml.safe_load(node.config_path.read_text())
    config["raft"]["peers"] = ",".join(
        f"{each.id}=127.0.0.1:{each.link_port}" for each in (cluster.nodes[told_of], node)
    )
    config["raft"].pop("peerHTTPAddrs")
    node.config_path.write_text(yaml.safe_dump(config))
    cluster.start("n4")

    addr = f"127.0.0.1:{node.link_port}"
    body = {"nodeId": "n4", "addr": addr, "httpAddr": node.url}
    await change(cluster, told_of, "cluster/join", body)
    await cluster.wait_ready(["n4"], within_s=SETTLES_S)


async def test_a_join_says_at_once_what_keeps_a_node_away(cluster: LocalCluster) -> None:
    """Its number of shards is another one; mended during the wait, it becomes a voter."""
    node = cluster.configure("n4")
    right = node.config_path.read_text()
    node.config_path.write_text(right.replace("numShards: 2", "numShards: 3"))
    cluster.start("n4")
    url = cluster.nodes["n1"].url
    join = ("cluster", "join", "n4", "--addr", f"127.0.0.1:{node.link_port}", "--http", node.url)
    joining = asyncio.create_task(
        command(*join, "--wait", "100", "--url", url, token=OPERATOR_TOKEN, within_s=120.0)
    )
    remedy = "the other side has another number of shards"

    async def refused() -> bool:
        _, seen = await administer(cluster, "n1", "cluster")
        return any(remedy in each.get("remedy", "") for each in seen["nodes"])

    await until(refused, what="n1 says what keeps n4 away")
    status = await command("cluster", "status", "--url", url, token=OPERATOR_TOKEN, within_s=60.0)
    given_up = await command(
        *join, "--wait", "1", "--url", url, token=OPERATOR_TOKEN, within_s=60.0
    )
    await cluster.stop("n4")
    shutil.rmtree(node.data_path)
    node.config_path.write_text(right)
    cluster.start("n4")
    ended = await joining

    assert f"n4 cannot connect: {remedy}" in status.out, status.out
    assert 1 == given_up.code
    assert f"after 1 s n4 cannot connect: {remedy}" in given_up.err, given_up.err
    assert 0 == ended.code, ended.err
    assert 1 == ended.err.count(f"n4 cannot connect: {remedy}"), ended.err
    await all_vote(cluster, "n1", {"n1", "n2", "n3", "n4"})


async def test_an_identity_that_lives_is_not_taken_over(cluster: LocalCluster) -> None:
    """A second process with the same id and other data is refused."""
    twin = cluster.configure("twin")
    config = yaml.safe_load(twin.config_path.read_text())
    config["raft"]["selfId"] = "n2"
    config["raft"]["peers"] = ",".join(
        f"{node.id}=127.0.0.1:{twin.link_port if node.id == 'n2' else node.link_port}"
        for node in cluster.nodes.values()
        if node.id != "twin"
    )
    config["raft"].pop("peerHTTPAddrs")
    twin.config_path.write_text(yaml.safe_dump(config))
    cluster.start("twin")

    async def told() -> bool:
        return '"reason": "lives"' in twin.log_path.read_text()

    await until(told, what="the twin is told why")
    assert "running on other data" in twin.log_path.read_text()
    assert not await cluster.ready("twin")
    await cluster.wait_ready(["n2"])


async def test_nodes_may_move(cluster: LocalCluster) -> None:
    """One node comes back at another address, then a second one that does not know the first's."""
    for node_id in ("n2", "n3"):
        await cluster.stop(node_id)
        port = free_ports(1)[0]
        _say_in_its_own_configuration(cluster, node_id, port)
        cluster.start(node_id)
        await cluster.wait_ready([node_id], within_s=SETTLES_S)
        await on_record(cluster, "n1", port=port)
    # The two must have found each other, because no other node is left to form a majority.
    await cluster.kill("n1")
    await cluster.leader_of(0, among=["n2", "n3"])


def _say_in_its_own_configuration(cluster: LocalCluster, node_id: str, port: int) -> None:
    node = cluster.nodes[node_id]
    text = node.config_path.read_text()
    node.config_path.write_text(text.replace(f":{node.link_port}", f":{port}"))
    node.link_port = port


async def test_a_node_listens_elsewhere_than_it_is_reached(cluster: LocalCluster) -> None:
    """Peers dial the address that it announces, as behind a NAT, also after a restart."""
    node, inside = cluster.nodes["n2"], free_ports(1)[0]
    translated = LinkProxies({"n2": inside, "peer": 0})
    await translated.start()
    try:
        await cluster.stop("n2")
        node.link_port = translated.port("peer", "n2")
        cluster.write_config("n2")
        config = yaml.safe_load(node.config_path.read_text())
        config["raft"]["bindAddr"] = f"0.0.0.0:{inside}"
        node.config_path.write_text(yaml.safe_dump(config))
        cluster.start("n2")
        await cluster.wait_ready(["n2"], within_s=SETTLES_S)
        await on_record(cluster, "n1", port=node.link_port)
        # This node must dial, because its configuration has an address that no longer exists.
        await cluster.stop("n1")
        before = translated.dialled["peer", "n2"]
        cluster.start("n1")
        await cluster.wait_ready(["n1"], within_s=SETTLES_S)

        async def dialled() -> bool:
            return translated.dialled["peer", "n2"] > before

        await until(dialled, what="n1 dials what n2 says")
    finally:
        await translated.stop()


async def test_a_shard_that_cannot_be_rebalanced_is_named(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The preferred node is down: the operator reads which shard did not move, and why."""
    await cluster.kill("n2")
    await cluster.leader_of(1, among=["n1", "n3"])
    url, token = cluster.nodes["n1"].url, OPERATOR_TOKEN
    command = ["cluster", "rebalance", "--wait", "1", "--url", url, "--token", token]

    status = await asyncio.to_thread(main, command)

    assert 1 == status
    assert "shard 1 is not led by n2, which should lead it" in capsys.readouterr().err


async def on_record(cluster: LocalCluster, asked: str, *, port: int) -> None:
    """Wait until a node has recorded another one's link at that port."""

    async def known() -> bool:
        _, seen = await administer(cluster, asked, "cluster")
        return any(each["addr"].endswith(f":{port}") for each in seen["nodes"])

    await until(known, what=f"a link at port {port} is on record")


async def test_a_change_that_would_leave_no_majority_is_refused(cluster: LocalCluster) -> None:
    """Every shard refuses and says why; a node does not remove itself either."""
    status, answer = await administer(cluster, "n1", "cluster/remove", {"nodeId": "n1"})
    assert (409, "asked-itself") == (status, answer["code"]), answer
    await cluster.kill("n3")

    async def refused() -> bool:
        status, answer = await administer(cluster, "n1", "cluster/remove", {"nodeId": "n2"})
        return status == 409 and answer["code"] == "no-majority"

    await until(refused, what="the removal is refused")
    assert all(found == {"n1", "n2", "n3"} for found in await voters(cluster, "n1"))
