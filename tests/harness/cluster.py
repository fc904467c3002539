"""Local cluster: real node processes on loopback, with faults that need no root."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from codeq_cluster.testing.ports import free_ports
from tests.harness.certificates import Authority
from tests.harness.node_process import (
    ADMIN_TOKEN,
    START_WITHIN_S,
    Harness,
    NodeProcess,
    ObservedGroup,
)
from tests.harness.partition import LinkProxies
from tests.harness.waiting import ClusterError, until

_NOBODY = 1  # The discard port, on which nobody listens.


class LocalCluster(Harness[NodeProcess]):
    """Real node processes on loopback.

    An async context manager: entering starts every node and waits until all are ready, leaving
    kills them. Ports are picked at run time and kept over restarts.

    Args:
        directory: Data, configuration and logs, one directory per node; kept afterwards.
        nodes: The number of nodes.
        shards: Raft groups.
        cuttable: Route every directed link, or those of the nodes named, through a proxy of this
            process, so that `cut` works. Otherwise nodes dial each other directly, and a killed
            node refuses connections at once, as it would without proxies.
        settings: Merged into every configuration file.
        authority: Signs a certificate per node, for https and for the link; None leaves both
            plain.
        names: Ids of the nodes; None for n1, n2 and so on.
        ready_within_s: The bound on the nodes' start.
        absent: Nodes that `start` must start: they join a cluster that is bootstrapped already.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        shards: int = 4,
        cuttable: bool | Collection[str] = False,
        settings: Mapping[str, object] | None = None,
        authority: Authority | None = None,
        names: Sequence[str] | None = None,
        ready_within_s: float = START_WITHIN_S,
        absent: Sequence[str] = (),
    ) -> None:
        self.authority = authority
        self._directory = directory
        self._ready_within_s = ready_within_s
        self._absent = tuple(absent)
        made = [self._node(names[n] if names else f"n{n + 1}") for n in range(nodes)]
        super().__init__(
            {node.id: node for node in made},
            shards=shards,
            settings=settings,
            token=ADMIN_TOKEN,
            trust=self.trust,
        )
        self._cuttable = frozenset(self.nodes if cuttable is True else cuttable or ())
        self._proxies = LinkProxies({n.id: n.link_port for n in self.nodes.values()})

    async def _open(self) -> None:
        """Start every node that is not absent, and wait until they are ready."""
        if self._cuttable:
            await self._proxies.start()
        for node_id in self.nodes:
            self.write_config(node_id)
        present = [node_id for node_id in self.nodes if node_id not in self._absent]
        for node_id in present:
            self.start(node_id)
        await self.wait_ready(present, within_s=self._ready_within_s)

    async def close(self) -> None:
        """Kill all running processes; safe to call again. `stop` shuts a node down properly."""
        await super().close()
        await self._proxies.stop()

    @property
    def trust(self) -> ssl.SSLContext:
        """The context for clients to trust the nodes; without effect on plain HTTP."""
        if self.authority is None:
            return ssl.create_default_context()
        return ssl.create_default_context(cadata=self.authority.pem.decode())

    # Faults.

    def configure(self, node_id: str) -> NodeProcess:
        """Add one more node with its own configuration; it is not started."""
        self.nodes[node_id] = self._node(node_id)
        self.write_config(node_id)
        return self.nodes[node_id]

    def cut(self, node_id: str, *, hears: bool = False, speaks: bool = False) -> None:
        """Cut a node off from its peers; clients still reach it.

        Args:
            node_id: The node to cut off.
            hears: Leave the direction to the node open.
            speaks: Leave the direction from the node open.
        """
        assert node_id in self._cuttable, "only what was made cuttable can be cut off"
        for peer in self.nodes:
            if peer == node_id:
                continue
            if not speaks:
                self._proxies.block(node_id, peer)
            if not hears:
                self._proxies.block(peer, node_id)

    def wall_in(self, node_id: str) -> None:
        """Let a node dial no peer, as behind a wrong rule of a firewall; its peers dial it."""
        assert node_id in self._cuttable, "only what was made cuttable can be walled in"
        for peer in self.nodes.keys() - {node_id}:
            self._proxies.refuse(node_id, peer)

    def heal(self, node_id: str | None = None) -> None:
        """Open every direction to and from a node, or of all nodes; held bytes arrive late.

        Nodes may dial again.
        """
        for source in self.nodes:
            for target in self.nodes:
                if source != target and node_id in (None, source, target):
                    self._proxies.unblock(source, target)

    def link_port(self, source: str, target: str) -> int:
        """Return the port at which a node dials another, so that a test can slow that link down."""
        if source != target and self._cuttable & {source, target}:
            return self._proxies.port(source, target)
        return self.nodes[target].link_port

    async def restore(self) -> None:
        """Undo every fault: all nodes run, are connected and ready."""
        self.heal()
        for node in self.nodes.values():
            if node.paused:
                node.resume()
            if not node.running:
                self.start(node.id)
        await self.wait_ready()

    # Observation.

    async def leader_of(
        self, shard: int, *, among: Sequence[str] | None = None, within_s: float = 15.0
    ) -> str:
        """Return the node that leads a shard, after waiting for one if necessary.

        Args:
            shard: The shard.
            among: The nodes asked, all by default; of two that claim to lead, the one with the
                higher term is believed.
            within_s: Seconds to wait.

        Raises:
            ClusterError: No leader in time.
        """

        async def leads() -> str | None:
            return await self.leader(shard, among=among)

        return await until(leads, within_s=within_s, what=f"a leader of shard {shard}")

    async def wait_converged(self, *, within_s: float = 20.0) -> dict[int, ObservedGroup]:
        """Wait until every node has the same applied index and digest in every shard.

        Returns:
            The common status by shard, as the first node reports it.

        Raises:
            ClusterError: The nodes still differ at the deadline.
        """
        try:
            return await until(self.converged, within_s=within_s, what="equal replicas")
        except ClusterError as error:
            seen = {node_id: await self.status(node_id) for node_id in self.nodes}
            raise ClusterError(f"{error}: {seen}\n{self.logs()}") from error

    # Private.

    def _node(self, node_id: str) -> NodeProcess:
        http_port, link_port = free_ports(2)
        return NodeProcess(
            node_id,
            self._directory / node_id,
            http_port=http_port,
            link_port=link_port,
            secure=self.authority is not None,
        )

    def _config(self, node: NodeProcess) -> dict[str, object]:
        config = super()._config(node)
        config["webhooks"] = {"allowPrivate": True, "unsigned": "allow"}
        if self.authority is not None:
            _secure(config, node, self.authority)
        return config

    def _link(self, source: NodeProcess, target: NodeProcess) -> str:
        if source is target and self._cuttable:
            # It announces an address that nobody listens on: a peer that dialled the real one
            # would bypass the proxy and its cuts.
            return f"127.0.0.1:{_NOBODY}"
        return f"127.0.0.1:{self.link_port(source.id, target.id)}"


def _secure(config: dict[str, object], node: NodeProcess, authority: Authority) -> None:
    node.directory.mkdir(parents=True, exist_ok=True)
    certificate, key, ca = (node.directory / name for name in ("node.pem", "node.key", "ca.pem"))
    authority.issue(node.id, "127.0.0.1").write(certificate, key)
    ca.write_bytes(authority.pem)
    pair = {"certFile": str(certificate), "keyFile": str(key)}
    config["tls"] = pair
    config["raft.tls"] = {**pair, "caFile": str(ca)}
