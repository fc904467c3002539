"""A cluster whose nodes and clients authenticate each other by certificates."""

from __future__ import annotations

from pathlib import Path

from tests.harness.certificates import Authority
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.commands import command
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until


async def test_a_cluster_serves_over_https_and_a_secured_link(tmp_path: Path) -> None:
    """Covers a task over three nodes, a node's renewed certificate, and the commands with --ca."""
    authority = Authority()
    async with (
        LocalCluster(tmp_path, authority=authority) as cluster,
        RecordingClient(cluster.urls, trust=cluster.trust) as client,
    ):
        # Enough tasks to reach every shard; each step goes to another node.
        for number in range(8):
            await client.created("n1", PRODUCER_TOKEN, "c", payload={"number": number})
            claimed = await client.claimed("n2", WORKER_TOKENS["worker-0"], ["c"])
            await client.finished("n3", WORKER_TOKENS["worker-0"], claimed, {"ok": 1})
        await cluster.wait_converged()

        # A node renews its certificate, and after a restart its peers accept the new one.
        node = cluster.nodes["n2"]
        renewed = authority.issue("n2", "127.0.0.1", days=90)
        renewed.write(node.directory / "node.pem", node.directory / "node.key")

        async def is_used() -> bool:
            text = node.log_path.read_text()
            return text.count("certificate loaded") >= 2

        await until(is_used, what="the renewed certificate in use, twice")
        await cluster.stop("n2")
        cluster.start("n2")
        await cluster.wait_ready()

        # A node with another cluster's certificate is no peer, even with this cluster's secret.
        await cluster.stop("n3")
        Authority().issue("n3", "127.0.0.1").write(
            cluster.nodes["n3"].directory / "node.pem", cluster.nodes["n3"].directory / "node.key"
        )
        cluster.start("n3")

        async def has_ended() -> bool:
            return not cluster.nodes["n3"].running

        await until(has_ended, what="n3 refusing to begin")
        created = await client.created("n1", PRODUCER_TOKEN, "c")

        # The commands trust the authority they are given, and no other.
        ca = tmp_path / "n1" / "ca.pem"
        target = ("--url", node.url, "--token", ADMIN_TOKEN)
        asked = ("task", "get", created["id"], *target)
        believed, refused = await command(*asked, "--ca", ca), await command(*asked)
        assert (0, created["id"]) == (believed.code, believed.document["id"])
        assert 1 == refused.code
        assert "certificate" in refused.err.lower()

        async def is_well() -> bool:
            # A node is not ready while a shard changes its leader. The command also finds n3, which
            # is down, so it ends with 1.
            seen = await command("status", *target, "--ca", ca, "--json")
            ready = {each["id"]: each["ready"] for each in seen.document["nodes"]}
            return (1, {"n1": True, "n2": True, "n3": False}) == (seen.code, ready)

        await until(is_well, what="n2 healthy and ready, over https")
