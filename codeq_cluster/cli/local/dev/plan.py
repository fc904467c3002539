"""Plan: the nodes of a development cluster, their ports and their configuration."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codeq_cluster.auth.identity import WORKER_SCOPES, Role
from codeq_cluster.cli.local.dev.port_holder import holder_of
from codeq_cluster.cli.support.dev_cluster import TOKEN
from codeq_cluster.cli.support.outcome import UsageRefused
from codeq_cluster.errors import ConfigInvalid

HOST = "127.0.0.1"
CLUSTER_ID = "dev"
VIRTUAL_CLUSTER_ID = "dev-virtual-time"

# One directory beside the nodes' own, shared by all of them.
ARTIFACTS = "artifacts"
BACKUPS = "backups"

_LINK_OFFSET = 10_000
_PORT_MAX = 65_535

# A laptop runs three nodes beside an editor and a browser: 64 MiB of cache per node is enough.
_BLOCK_CACHE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """One node of the cluster.

    Attributes:
        directory: Holds its configuration, its log and a directory with its data.
    """

    id: str
    port: int
    link_port: int
    directory: Path

    @property
    def url(self) -> str:
        """Base URL of its HTTP port."""
        return f"http://{HOST}:{self.port}"

    @property
    def data_directory(self) -> Path:
        """The directory of the node's shards; nothing else is kept there."""
        return self.directory / "data"

    @property
    def config_file(self) -> Path:
        """The file for `codeq-cluster node --config`."""
        return self.directory / "node.yaml"

    @property
    def log_file(self) -> Path:
        """The file for its standard output and error."""
        return self.directory / "node.log"


def plan(directory: Path, *, nodes: int, port_base: int) -> tuple[PlannedNode, ...]:
    """Return the nodes n1, n2, … on consecutive ports.

    Link ports are ten thousand above the HTTP ports, or below them if that is out of range.

    Args:
        directory: The cluster's directory; absolute, since nodes may run from anywhere.
        nodes: At least 1.
        port_base: HTTP port of the first node.

    Raises:
        Usage: A port is out of range.
    """
    last = port_base + nodes - 1
    if port_base < 1 or last > _PORT_MAX:
        raise UsageRefused(
            f"first port {port_base} (--port-base, CODEQ_PORT_BASE): "
            f"must be 1 to {_PORT_MAX - nodes + 1} for {nodes} nodes"
        )
    offset = _LINK_OFFSET if last + _LINK_OFFSET <= _PORT_MAX else -_LINK_OFFSET
    return tuple(
        PlannedNode(
            id=f"n{position + 1}",
            port=port_base + position,
            link_port=port_base + offset + position,
            directory=directory / f"n{position + 1}",
        )
        for position in range(nodes)
    )


def port_base_of(flag: int | None, environment: Mapping[str, str]) -> int:
    """Return the first HTTP port: flag, else CODEQ_PORT_BASE, else 8080.

    Raises:
        ConfigInvalid: The variable is not a whole number.
    """
    if flag is not None:
        return flag
    text = environment.get("CODEQ_PORT_BASE", "").strip() or "8080"
    if not text.isdecimal() or len(text) > 5:
        raise ConfigInvalid(f"CODEQ_PORT_BASE={text}: must be a port, 1 to {_PORT_MAX}")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a development cluster has beside the usual.

    Attributes:
        tenants: Tenants beside the default one, each with a token of its own.
        webhook_secret: Signs webhooks; empty for the cluster's own secret.
        virtual_time: Its clock moves on request.
    """

    tenants: tuple[str, ...] = ()
    webhook_secret: str = ""
    virtual_time: bool = False

    @property
    def tokens(self) -> Mapping[str, str]:
        """Return the token of each tenant; the default tenant has no name."""
        return {"": TOKEN} | {tenant: f"{TOKEN}-{tenant}" for tenant in self.tenants}

    def signing(self, secret_file: Path) -> dict[str, object]:
        """Return the setting of the secret that signs webhooks."""
        if self.webhook_secret:
            return {"webhookHmacSecret": self.webhook_secret}
        return {"webhookHmacSecretFile": str(secret_file)}


NO_EXTRAS = Extras()


def document(
    node: PlannedNode,
    nodes: tuple[PlannedNode, ...],
    *,
    shards: int,
    secret_file: Path,
    extras: Extras = NO_EXTRAS,
) -> dict[str, object]:
    """Return the configuration file of one node, as `codeq-cluster node` reads it."""
    tokens = [
        {
            "token": token,
            "subject": "dev",
            "scopes": [
                *sorted(WORKER_SCOPES),
                Role.ADMIN.value,
                *([] if tenant else [Role.OPERATOR.value]),
            ],
            "eventTypes": ["*"],
            **({"tenant": tenant} if tenant else {}),
        }
        for tenant, token in extras.tokens.items()
    ]
    provider = [{"kind": "static", "tokens": tokens}]
    # No backup carries data of virtual time into a cluster of real time, and no node of one can
    # link to this one. No task of virtual time has to survive a power cut.
    apart: dict[str, object] = {"clusterId": VIRTUAL_CLUSTER_ID, "durability": "os"}
    backup = {"backup": {"directory": str(node.directory.parent / BACKUPS)}}
    return {
        "port": node.port,
        "host": HOST,
        # Another site's name that leads to this machine must not make a browser send requests here.
        "allowedHosts": ["localhost"],
        "clusterId": CLUSTER_ID,
        "clusterSecretFile": str(secret_file),
        "raft": {
            "selfId": node.id,
            "peers": {peer.id: f"{HOST}:{peer.link_port}" for peer in nodes},
            "peerHTTPAddrs": {peer.id: peer.url for peer in nodes},
        },
        "persistenceConfig": {"path": str(node.data_directory), "numShards": shards},
        "store": {"blockCacheBytes": _BLOCK_CACHE_BYTES},
        "allowProducerAsWorker": True,
        "webhooks": {"allowPrivate": True},
        **extras.signing(secret_file),
        # No load balancer needs time to notice that a node stops.
        "limits": {"drainMs": 0},
        "artifacts": {
            "provider": "local",
            "directory": str(node.directory.parent / ARTIFACTS),
        },
        "auth": {"tenantFallback": "default", "producer": provider, "worker": provider},
        **(apart if extras.virtual_time else backup),
    }


def require_free(nodes: tuple[PlannedNode, ...]) -> None:
    """Check that every port can be bound.

    Raises:
        ConfigInvalid: Another process holds a port, or this user may not bind it.
    """
    for node in nodes:
        for port in (node.port, node.link_port):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                # The same option as a server's: a lingering connection must not block a restart.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as error:
                    taken = error.errno == errno.EADDRINUSE
                    reason = "is taken" if taken else f"cannot be bound ({error.strerror})"
                    raise ConfigInvalid(
                        f"port {port} of node {node.id} {reason}; "
                        f"{_stopping(port)}, or move the cluster with CODEQ_PORT_BASE"
                    ) from error


def _stopping(port: int) -> str:
    """Return how to stop the process that holds a port."""
    holder = holder_of(port)
    if holder is None:
        return "stop what uses it"
    return (
        f"stop the process that holds it with: kill {holder.pid} ({' '.join(holder.words)[:200]})"
    )
