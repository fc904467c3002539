"""Node: all settings of one node, frozen and validated once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from codeq_cluster.core.sharding import SHARDS_MAX
from codeq_cluster.settings.auth import AuthSettings
from codeq_cluster.settings.cluster import LinkSettings, LinkTlsSettings, RaftSettings, TlsSettings
from codeq_cluster.settings.files import ArtifactSettings, BackupSettings
from codeq_cluster.settings.front_end import ProxySettings
from codeq_cluster.settings.key import SettingKey, key, keys_of, made_from, section, value_of
from codeq_cluster.settings.kinds import (
    ADDRESS,
    HOST,
    HOSTS,
    ID,
    LISTENING,
    PATH,
    SECRET,
    URL,
    choice,
    each,
    whole,
)
from codeq_cluster.settings.outgoing import TracingSettings, WebhookSettings
from codeq_cluster.settings.store import StoreSettings
from codeq_cluster.settings.tasks import LifecycleSettings, LimitSettings
from codeq_cluster.settings.tenants import BudgetSettings, RateLimitSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """The addresses of one node of the cluster.

    Attributes:
        link: host:port of the node-to-node link.
        http: Base URL of the HTTP front end.
    """

    id: str
    link: str
    http: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """One node.

    Attributes:
        cluster_id: A peer that names another is refused.
        peers: Every node of the cluster, this one included, the same order everywhere.
        link_host: Where the link listens; empty for every address of the machine.
    """

    port: int = key(8080, whole(1, 65535), "HTTP port")
    host: str = key("127.0.0.1", HOST, "address that the HTTP port listens on", env="CODEQ_HOST")
    allowed_hosts: tuple[str, ...] = key(
        (), HOSTS, "host names that requests may be sent to, beside IP addresses; without them, any"
    )
    cluster_id: str = key("codeq", ID, "name of the cluster, the same on every node")
    cluster_secret: str = field(
        repr=False,
        metadata=value_of(
            SECRET,
            "shared secret by which nodes prove themselves to each other; required with more than "
            "one node",
            secret=True,
        ),
    )
    log_level: str = key(
        "info",
        choice("debug", "info", "warning", "error", aliases={"warn": "warning"}),
        "lowest severity that is logged",
    )
    access_log: str = key(
        "debug", choice("never", "debug", "info"), "severity of the log line of each request"
    )
    metrics_max_commands: int = key(
        200,
        whole(1, 100_000),
        "distinct values of the label `command`; further commands count as `other`",
        name="metrics.maxCommands",
    )
    data_dir: Path = field(
        metadata=value_of(
            PATH, "data directory; required", name="persistenceConfig.path", env="PERSISTENCE_PATH"
        )
    )
    shards: int = key(
        4,
        whole(1, SHARDS_MAX),
        "number of Raft groups; fixed when the data is created",
        name="persistenceConfig.numShards",
        env="PERSISTENCE_NUM_SHARDS",
    )
    tracing: TracingSettings = section(TracingSettings)
    node_id: str = key("n1", ID, "id of this node; required with `raft.peers`", name="raft.selfId")
    link_host: str = "127.0.0.1"
    link_port: int = field(
        default=18080,
        metadata=made_from(
            SettingKey(
                "raft.bindAddr",
                LISTENING,
                "address that the link listens on; by default, this node's address in `raft.peers`",
            )
        ),
    )
    peers: tuple[PeerAddress, ...] = field(
        metadata=made_from(
            SettingKey(
                "raft.peers",
                each(ADDRESS),
                "link addresses of this node and of all nodes of a new cluster, or some of a "
                "running one; without it, a cluster of one node",
            ),
            SettingKey(
                "raft.peerHTTPAddrs",
                each(URL),
                "base URL of each node; by default, the host of the node's link address and this "
                "node's `port`",
            ),
        )
    )
    raft: RaftSettings = section(RaftSettings)
    tls: TlsSettings = section(TlsSettings)
    proxies: ProxySettings = section(ProxySettings)
    link_tls: LinkTlsSettings = section(LinkTlsSettings, name="raft.tls")
    lifecycle: LifecycleSettings = section(LifecycleSettings, name="")
    auth: AuthSettings = section(AuthSettings)
    artifacts: ArtifactSettings = section(ArtifactSettings)
    backup: BackupSettings = section(BackupSettings)
    limits: LimitSettings = section(LimitSettings)
    rate_limit: RateLimitSettings = section(RateLimitSettings)
    budgets: BudgetSettings = section(BudgetSettings)
    link: LinkSettings = section(LinkSettings)
    store: StoreSettings = section(StoreSettings)
    webhooks: WebhookSettings = section(WebhookSettings)


# Every key, in the order of the fields.
KEYS: tuple[SettingKey, ...] = tuple(keys_of(NodeSettings))
