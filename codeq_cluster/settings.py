"""Settings: every knob of a node, frozen and validated once; the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Durability(StrEnum):
    """What an acknowledged write has survived on a majority of nodes."""

    FSYNC = "fsync"
    OS = "os"


class BackoffPolicy(StrEnum):
    """How the delay of a nack grows with the attempts."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    EXP_EQUAL_JITTER = "exp_equal_jitter"
    EXP_FULL_JITTER = "exp_full_jitter"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Consensus of one shard.

    Attributes:
        heartbeat_ms: Between a leader's heartbeats; more costs idle CPU less, finds failures later.
        election_ms: A follower waits this to twice this in silence before it stands.
        fallback_ms: A leader without a majority for this long steps down.
        append_bytes_max: Of entries in one append message.
        entry_bytes_max: Of one entry; must stay below `append_bytes_max`.
        turn_ms: Between two turns of one group; longer gathers more in an entry and costs latency.
        entries_in_flight_max: Proposed and not applied, a shard.
        cache_bytes_max: Of recent log entries in memory, a shard.
        keep_entries: Of the log, behind the slowest peer.
    """

    heartbeat_ms: int = 100
    election_ms: int = 1000
    fallback_ms: int = 1500
    turn_ms: int = 2
    append_bytes_max: int = 4 * 2**20
    entry_bytes_max: int = 3 * 2**20
    entries_in_flight_max: int = 4
    cache_bytes_max: int = 16 * 2**20
    keep_entries: int = 10_000
    durability: Durability = Durability.FSYNC


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """The node-to-node link.

    Attributes:
        ping_ms: A direction idle for this long carries a ping.
        silence_ms_max: A connection without a byte for this long is given up.
    """

    frame_bytes_max: int = 16 * 2**20
    queue_bytes_max: int = 64 * 2**20
    handshake_timeout_ms: int = 3000
    dial_timeout_ms: int = 1000
    redial_ms: int = 100
    redial_ms_max: int = 1000
    rpc_in_flight_max: int = 10_000
    unknown_connections_max: int = 64
    ping_ms: int = 1000
    silence_ms_max: int = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """RocksDB, one directory a shard."""

    block_cache_bytes: int = 256 * 2**20
    memtable_bytes: int = 16 * 2**20
    bloom_bits: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Every bound a user can meet, each with its reason.

    Attributes:
        max_body_bytes: A request's body; larger products belong into artifacts.
        max_result_bytes: A result's JSON text.
        max_error_bytes: A result's error text; it is kept with the task and with the result.
        batch_max: Items of one batch request.
        payload_depth_max: Nesting of a payload; deeper JSON breaks readers, not us.
        request_timeout_ms: From a request's last byte to its answer, waits not counted.
        operations_queued_max: Waiting for a shard's next entry; beyond it writers get 503.
        operations_queued_bytes_max: The same in bytes of payload.
        waiters_max: Claims and result waits waiting on one node.
        connections_max: HTTP connections of one node.
    """

    max_body_bytes: int = 2**20
    max_result_bytes: int = 2**20
    max_error_bytes: int = 64 * 2**10
    batch_max: int = 100
    payload_depth_max: int = 200
    idempotency_key_bytes_max: int = 256
    max_attempts_max: int = 1000
    lease_seconds_max: int = 12 * 3600
    delay_seconds_max: int = 366 * 86400
    claim_wait_seconds_max: int = 30
    result_wait_seconds_max: int = 60
    request_timeout_ms: int = 10_000
    operations_queued_max: int = 20_000
    operations_queued_bytes_max: int = 64 * 2**20
    waiters_max: int = 20_000
    connections_max: int = 10_000
    header_timeout_ms: int = 10_000
    body_timeout_ms: int = 30_000
    idle_timeout_ms: int = 75_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleSettings:
    """What happens to a task by default."""

    default_lease_seconds: int = 300
    max_attempts_default: int = 5
    backoff_policy: BackoffPolicy = BackoffPolicy.EXP_FULL_JITTER
    backoff_base_seconds: int = 5
    backoff_max_seconds: int = 900
    retention_seconds: int = 86400
    dlq_retention_seconds: int = 7 * 86400
    lease_grace_seconds: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """Where one node of the cluster is reached.

    Attributes:
        link: host:port of the node-to-node link.
        http: Base URL of the HTTP front end.
    """

    id: str
    link: str
    http: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthProviderSettings:
    """One way to verify a token: kind `static`, `hs256` or `jwks`, with that kind's own fields."""

    kind: str
    tokens: tuple[StaticToken, ...] = ()
    secret: str = field(default="", repr=False)
    jwks_url: str = ""
    issuer: str = ""
    audience: str = ""
    algorithms: tuple[str, ...] = ()
    cache_seconds: int = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticToken:
    """A token known in advance and the claims it stands for."""

    token: str = field(repr=False)
    subject: str
    tenant: str | None = None
    scopes: tuple[str, ...] = ()
    event_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Who may call.

    Attributes:
        producer: Providers tried in order for producer routes.
        worker: Providers tried in order for worker routes.
        tenant_fallback: `deny`, `subject` or `default`, for a token that names no tenant.
    """

    producer: tuple[AuthProviderSettings, ...] = ()
    worker: tuple[AuthProviderSettings, ...] = ()
    tenant_fallback: str = "deny"
    allow_producer_as_worker: bool = False
    clock_skew_seconds: int = 60
    cached_tokens_max: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """One node.

    Attributes:
        cluster_id: The same on every node; a peer that names another is refused.
        cluster_secret: Shared by the nodes; proves a peer's identity on the link.
        peers: Every node of the cluster, this one included, the same order everywhere.
        shards: Raft groups; fixed when the data is created.
    """

    node_id: str
    cluster_id: str
    cluster_secret: str = field(repr=False)
    peers: tuple[PeerAddress, ...]
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 8080
    link_host: str = "127.0.0.1"
    link_port: int = 18080
    shards: int = 4
    log_level: str = "info"
    metrics_max_commands: int = 200
    raft: RaftSettings = RaftSettings()
    link: LinkSettings = LinkSettings()
    store: StoreSettings = StoreSettings()
    limits: LimitSettings = LimitSettings()
    lifecycle: LifecycleSettings = LifecycleSettings()
    auth: AuthSettings = AuthSettings()


def environment() -> Mapping[str, str]:
    """Return the process's environment variables, as they are now."""
    return dict(os.environ)
