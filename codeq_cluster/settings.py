"""Settings: all settings of a node, frozen and validated once; the only reader of os.environ."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit


class Durability(StrEnum):
    """What an acknowledged write survives on a majority of nodes."""

    FSYNC = "fsync"
    OS = "os"


class LogSync(StrEnum):
    """Which thread waits until the disk has the write-ahead log."""

    AUTO = "auto"
    THREAD = "thread"
    KERNEL = "kernel"


class BackoffPolicy(StrEnum):
    """How the delay of a nack grows with the attempts."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    EXP_EQUAL_JITTER = "exp_equal_jitter"
    EXP_FULL_JITTER = "exp_full_jitter"


class ArtifactProvider(StrEnum):
    """Where the artifacts of results are stored."""

    NONE = "none"
    LOCAL = "local"
    S3 = "s3"


class Unsigned(StrEnum):
    """The handling of webhooks and subscriptions without a signing secret."""

    REFUSE = "refuse"
    ALLOW = "allow"


class Signing(StrEnum):
    """A node's handling of webhooks and subscriptions."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Consensus of one shard.

    Attributes:
        heartbeat_ms: Between a leader's heartbeats; more saves idle CPU and finds failures later.
        election_ms: A follower waits this to twice this in silence before it starts an election.
        fallback_ms: A leader without a majority for this long steps down.
        turn_ms: Between two turns of one group while operations wait; more puts more operations in
            an entry and costs latency.
        append_bytes_max: Of entries in one append message.
        entry_bytes_max: Of one entry; must stay below `append_bytes_max`.
        entries_in_flight_max: Proposed and not applied, a shard; decisions made meanwhile share
            the next entry.
        cache_bytes_max: Of recent log entries in memory, a shard.
        keep_entries: Of the log, behind the slowest peer.
        log_bytes_max: Of the log; a peer that lacks trimmed entries then gets a snapshot.
        log_entries_max: The same in entries: each costs memory, however small.
        snapshot_bytes_per_s: Pace at which a shard's state is fetched from a peer.
    """

    heartbeat_ms: int = 100
    election_ms: int = 1000
    fallback_ms: int = 1500
    turn_ms: int = 1
    append_bytes_max: int = 4 * 2**20
    entry_bytes_max: int = 3 * 2**20
    entries_in_flight_max: int = 1
    cache_bytes_max: int = 16 * 2**20
    keep_entries: int = 10_000
    log_bytes_max: int = 64 * 2**20
    log_entries_max: int = 1_000_000
    snapshot_bytes_per_s: int = 32 * 2**20
    durability: Durability = Durability.FSYNC


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """The node-to-node link.

    Attributes:
        ping_ms: A direction idle for this long carries a ping.
        silence_ms_max: A connection without a byte for this long is closed.
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
    """RocksDB, one directory a shard.

    Attributes:
        unspilled_bytes: Of a shard's rows that its database has not taken yet; with more, the shard
            acknowledges nothing until it does. A stall of some seconds at 10 MB/s.
        min_free_bytes: Of the file system; with less, the node steps back before writes fail. With
            0, it steps back only then. At 100 MB/s of writes: a second's notice, and room for
            writes in progress.
        sync: Of the write-ahead log: by a thread, or by the kernel where it can. The kernel costs
            half the CPU, and waits longer where other work keeps all cores busy.
    """

    block_cache_bytes: int = 256 * 2**20
    memtable_bytes: int = 16 * 2**20
    bloom_bits: int = 10
    unspilled_bytes: int = 64 * 2**20
    min_free_bytes: int = 256 * 2**20
    sync: LogSync = LogSync.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Every bound a user can meet, each with its reason.

    Attributes:
        max_body_bytes: A request's body; larger products belong into artifacts.
        max_result_bytes: A result's JSON text.
        max_error_bytes: A result's error text; it is kept with the task and with the result.
        max_artifact_bytes: Of one artifact; it passes through a node's memory.
        batch_max: Items of one batch request.
        payload_depth_max: Nesting of a payload; deeper JSON breaks readers, not the broker.
        idempotency_key_bytes_max: Of a key; it is a part of a key of the store.
        max_attempts_max: Of a task; one that always fails must become a dead letter in time.
        lease_seconds_max: Of a lease; a dead worker's task waits this long.
        delay_seconds_max: Of `delaySeconds` and `ttlSeconds`; a larger value is likely a wrong
            unit.
        claim_wait_seconds_max: Of a claim; each holds a connection, which proxies cut after 60 s.
        result_wait_seconds_max: Of a result read; the same.
        request_timeout_ms: From a request's last byte to its answer, without waits.
        operations_queued_max: Waiting for a shard's next entry; beyond it writers get 503.
        operations_queued_bytes_max: The same in bytes of payload.
        waiters_max: Claims waiting on one node, and result reads; each costs a few KiB.
        connections_max: HTTP connections of one node; each costs a descriptor and buffers.
        header_timeout_ms: From a head's first byte to its last; a slower client is stalled.
        body_timeout_ms: For a whole body, and for a client to read its part of an answer.
        idle_timeout_ms: Between two requests; longer than the 60 s of usual proxies, which
            would otherwise send a request into a closing connection.
        drain_ms: Of a planned stop: `/readyz` reports it for this long before connections close.
    """

    max_body_bytes: int = 2**20
    max_result_bytes: int = 2**20
    max_error_bytes: int = 64 * 2**10
    max_artifact_bytes: int = 64 * 2**20
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
    drain_ms: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRateLimit:
    """A tenant's own limit in place of the general one; 0 requests a minute mean no limit.

    Attributes:
        tenant: Empty for the default tenant.
        scope: `producer`, `worker`, `admin` or `webhook`.
    """

    tenant: str
    scope: str
    requests_per_minute: int
    burst_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitSettings:
    """Each tenant's rate limits over the whole cluster; 0 for no limit.

    A limit is a rate and a burst: how many requests a tenant that was idle may make ahead of the
    rate.

    Attributes:
        producer_requests_per_minute: Creates; each task of a batch counts.
        worker_requests_per_minute: Claims; a batch counts once, as it may find nothing.
        admin_requests_per_minute: Clean-ups; each may delete much.
        webhook_requests_per_minute: Calls this cluster makes; those beyond it wait.
        tenants: Exceptions, each tenant and scope at most once.
    """

    producer_requests_per_minute: int = 0
    producer_burst_size: int = 0
    worker_requests_per_minute: int = 0
    worker_burst_size: int = 0
    admin_requests_per_minute: int = 0
    admin_burst_size: int = 0
    webhook_requests_per_minute: int = 0
    webhook_burst_size: int = 0
    tenants: tuple[TenantRateLimit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantBudget:
    """One tenant's budget, in place of the general bounds; 0 for no bound."""

    tenant: str
    ready_tasks: int = 0
    in_flight: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Each tenant's budget over the whole cluster; 0 for no bound.

    Attributes:
        ready_tasks: Tasks that wait, ready or delayed; beyond it creates are refused.
        in_flight: Tasks in progress; beyond it claims are refused.
        stored_bytes: Payloads and results kept; beyond it creates are refused, results never.
        tenants: Exceptions, each tenant at most once.
    """

    ready_tasks: int = 0
    in_flight: int = 0
    stored_bytes: int = 0
    tenants: tuple[TenantBudget, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSettings:
    """Where artifacts are stored.

    Attributes:
        public_url: Prefix of artifact URLs; empty for paths alone.
        directory: Of the provider `local`; the same for every node, on a shared disk if need be.
        s3_endpoint: Base URL of the store; AWS if empty.
        s3_prefix: Of the keys in the bucket, without slashes at its ends.
        s3_access_key_id: If empty, the credentials that AWS's own tools would find.
        s3_virtual_hosted: The endpoint's host names the bucket, its path does not.
        timeout_ms: Of an upload, of a deletion, and of each step of a download.
        uploads_max: In progress on one node; each has up to 32 MiB in memory.
    """

    provider: ArtifactProvider = ArtifactProvider.NONE
    public_url: str = ""
    directory: Path | None = None
    s3_bucket: str = ""
    s3_endpoint: str = ""
    s3_region: str = "us-east-1"
    s3_prefix: str = ""
    s3_access_key_id: str = field(default="", repr=False)
    s3_secret_access_key: str = field(default="", repr=False)
    s3_allow_http: bool = False
    s3_virtual_hosted: bool = False
    timeout_ms: int = 30_000
    uploads_max: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSettings:
    """Where this node stores the backups it takes: a directory, a bucket, or nowhere.

    Attributes:
        directory: On another disk than the data, or the backups are lost with it.
        s3_endpoint: Base URL of the store; AWS if empty.
        s3_prefix: Of the keys in the bucket, without slashes at its ends.
        s3_access_key_id: If empty, the credentials that AWS's own tools would find.
        timeout_ms: The longest silence of the store before an operation fails.
        keep: Complete backups that stay; a week of daily ones.
        bytes_per_second: Of rows read for a backup: the thread that compresses them takes turns
            with the node's own.
    """

    directory: Path | None = None
    s3_bucket: str = ""
    s3_endpoint: str = ""
    s3_region: str = "us-east-1"
    s3_prefix: str = ""
    s3_access_key_id: str = field(default="", repr=False)
    s3_secret_access_key: str = field(default="", repr=False)
    s3_allow_http: bool = False
    s3_virtual_hosted: bool = False
    timeout_ms: int = 30_000
    keep: int = 7
    bytes_per_second: int = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleSettings:
    """A task's defaults."""

    default_lease_seconds: int = 300
    max_attempts_default: int = 5
    backoff_policy: BackoffPolicy = BackoffPolicy.EXP_FULL_JITTER
    backoff_base_seconds: int = 5
    backoff_max_seconds: int = 900
    retention_seconds: int = 86400
    dlq_retention_seconds: int = 7 * 86400
    audit_retention_seconds: int = 90 * 86400
    lease_grace_seconds: float = 2.0


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
class AuthProviderSettings:
    """One way to verify a token: kind `static`, `hs256` or `jwks`, with that kind's own fields.

    Attributes:
        clock_skew_s: In place of the general one; None for that one.
        fetch_timeout_s: Of a fetch of published keys; None for the usual one.
    """

    kind: str
    tokens: tuple[StaticToken, ...] = ()
    secret: str = field(default="", repr=False)
    jwks_url: str = ""
    issuer: str = ""
    audience: str = ""
    algorithms: tuple[str, ...] = ()
    cache_seconds: int = 300
    clock_skew_s: float | None = None
    fetch_timeout_s: float | None = None

    @property
    def keys_exposed(self) -> bool:
        """Return whether another host sends the keys without TLS: an attacker between can forge."""
        url = urlsplit(self.jwks_url)
        if url.scheme != "http" or url.hostname == "localhost":
            return False
        try:
            return not ip_address(url.hostname or "").is_loopback
        except ValueError:
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticToken:
    """A token known in advance and its claims."""

    token: str = field(repr=False)
    subject: str
    tenant: str | None = None
    scopes: tuple[str, ...] = ()
    event_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Access to the API.

    Attributes:
        producer: Providers tried in order for producer routes.
        worker: Providers tried in order for worker routes.
        tenant_fallback: `deny`, `subject` or `default`, for a token that names no tenant.
        allow_http_jwks: Published keys may come from another host over plain HTTP.
    """

    producer: tuple[AuthProviderSettings, ...] = ()
    worker: tuple[AuthProviderSettings, ...] = ()
    tenant_fallback: str = "deny"
    allow_producer_as_worker: bool = False
    clock_skew_seconds: int = 60
    cached_tokens_max: int = 10_000
    allow_http_jwks: bool = False


class OtlpProtocol(StrEnum):
    """The protocol that carries spans, by the names of every OpenTelemetry SDK."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """Spans for a collector; off without an endpoint.

    Attributes:
        otlp_endpoint: Base URL of the collector. HTTP adds `/v1/traces` to it; gRPC uses only its
            host and port. The scheme decides on TLS.
        otlp_protocol: The collector's protocol at this endpoint.
        sample_ratio: Of the traces that begin here; a caller's own decision is followed.
        headers: `name=value,name=value`, sent with every export.
    """

    otlp_endpoint: str = ""
    otlp_protocol: OtlpProtocol = OtlpProtocol.HTTP
    sample_ratio: float = 1.0
    service_name: str = "codeq-cluster"
    headers: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Requests to targets that users name.

    Attributes:
        hmac_secret: Signs bodies; empty for none. The same on every node of a cluster.
        hmac_previous_secret: Signs beside it while receivers change over; empty for none.
        unsigned: The policy without a secret.
        max_attempts: Of one delivery; after them it is a dead delivery.
        base_backoff_seconds: After the first attempt; doubles with each.
        max_backoff_seconds: Longest wait between two attempts.
        max_age_seconds: Of a pending delivery, tried or not: a dead host with many waiting is tried
            about once a minute, so that attempts alone would never end them all.
        allow_private: Allows loopback, link-local and private targets, for development.
        timeout_seconds: From the look-up of a target's name to its answer.
        per_host_concurrency: Requests at once to one host and port, so that a slow host cannot take
            all.
        concurrency: Requests at once from this node; each costs a socket, and a thread while its
            name is resolved.
        subscription_min_interval_seconds: Between two notices to a subscription that names none.
    """

    hmac_secret: str = field(default="", repr=False)
    hmac_previous_secret: str = field(default="", repr=False)
    unsigned: Unsigned = Unsigned.REFUSE
    max_attempts: int = 5
    base_backoff_seconds: int = 2
    max_backoff_seconds: int = 60
    max_age_seconds: int = 86_400
    allow_private: bool = False
    timeout_seconds: float = 15.0
    per_host_concurrency: int = 4
    concurrency: int = 64
    subscription_min_interval_seconds: int = 5

    @property
    def signing(self) -> Signing:
        """Return the node's handling of webhooks and subscriptions."""
        if self.hmac_secret:
            return Signing.SIGNED
        return Signing.UNSIGNED if self.unsigned is Unsigned.ALLOW else Signing.REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The certificate of the HTTP front end; both files (PEM), or none for plain HTTP."""

    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTlsSettings:
    """The node's certificate on the link; all three files (PEM), or none.

    Attributes:
        cert_file: Its DNS names hold the node's id; valid for both roles of TLS.
        ca_file: The CA that signs peers; a CA of the cluster's own, since it admits nodes.
    """

    cert_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """One node.

    Attributes:
        cluster_id: The same on every node; a peer that names another is refused.
        cluster_secret: Shared by the nodes; proves a peer's identity on the link.
        peers: Every node of the cluster, this one included, the same order everywhere.
        shards: Raft groups; fixed when the data is created.
        access_log: Severity of a request's log line: `debug`, `info`, or `never`.
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
    access_log: str = "debug"
    metrics_max_commands: int = 200
    raft: RaftSettings = RaftSettings()
    link: LinkSettings = LinkSettings()
    store: StoreSettings = StoreSettings()
    limits: LimitSettings = LimitSettings()
    lifecycle: LifecycleSettings = LifecycleSettings()
    rate_limit: RateLimitSettings = RateLimitSettings()
    budgets: BudgetSettings = BudgetSettings()
    auth: AuthSettings = AuthSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    backup: BackupSettings = BackupSettings()
    tls: TlsSettings = TlsSettings()
    link_tls: LinkTlsSettings = LinkTlsSettings()
    tracing: TracingSettings = TracingSettings()
    webhooks: WebhookSettings = WebhookSettings()


def environment() -> Mapping[str, str]:
    """Return the process's present environment variables."""
    return dict(os.environ)
