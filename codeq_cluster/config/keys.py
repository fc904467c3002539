"""Keys: the table of every setting, its name in a file and in the environment, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from codeq_cluster.config.budgets import BOUND_MAX, TENANT_BUDGETS
from codeq_cluster.config.kinds import (
    ADDRESS,
    ANYTHING,
    FLAG,
    HEADERS,
    HOST,
    ID,
    KEY_PREFIX,
    PATH,
    SECRET,
    TEXT,
    URL,
    Kind,
    choice,
    each,
    member,
    number,
    whole,
)
from codeq_cluster.config.rates import BURST_MAX, PER_MINUTE_MAX, TENANT_RATES
from codeq_cluster.core.sharding import SHARDS_MAX
from codeq_cluster.settings import ArtifactProvider, BackoffPolicy, Durability

_MIB = 2**20
_YEAR_SECONDS = 366 * 86400


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    Attributes:
        name: In a file, dots between levels.
        env: The variable, and with `_FILE` behind it, for a secret, the file that holds it.
        meaning: One phrase, for the documentation.
        path: Where it lives in `NodeSettings`, or empty when `load` places it by hand.
        secret: Never printed, not even when it is wrong.
    """

    name: str
    env: str
    kind: Kind
    meaning: str
    path: str = ""
    secret: bool = False


_NODE = (
    Key("port", "PORT", whole(1, 65535), "HTTP port", "port"),
    Key("host", "CODEQ_HOST", HOST, "address the HTTP port listens on", "host"),
    Key("clusterId", "CLUSTER_ID", ID, "name of the cluster, the same on every node", "cluster_id"),
    Key(
        "clusterSecret",
        "CLUSTER_SECRET",
        SECRET,
        "shared by the nodes, proves a peer on the link; a must with more than one node",
        "cluster_secret",
        secret=True,
    ),
    Key(
        "logLevel",
        "LOG_LEVEL",
        choice("debug", "info", "warning", "error"),
        "least severity that is logged",
        "log_level",
    ),
    Key(
        "accessLog",
        "ACCESS_LOG",
        choice("never", "debug", "info"),
        "severity of the line each request leaves in the log",
        "access_log",
    ),
    Key(
        "metrics.maxCommands",
        "METRICS_MAX_COMMANDS",
        whole(1, 100_000),
        "distinct `command` labels; the rest is `other`",
        "metrics_max_commands",
    ),
    Key(
        "persistenceConfig.path",
        "PERSISTENCE_PATH",
        PATH,
        "data directory; a must, there is no default",
        "data_dir",
    ),
    Key(
        "persistenceConfig.numShards",
        "PERSISTENCE_NUM_SHARDS",
        whole(1, SHARDS_MAX),
        "Raft groups; fixed when the data is created",
        "shards",
    ),
    Key(
        "durability",
        "DURABILITY",
        member(Durability),
        "what an answered write survives on a majority: `fsync` a power cut, `os` a crash",
        "raft.durability",
    ),
)

_RAFT = (
    Key("raft.selfId", "RAFT_SELF_ID", ID, "id of this node; a must with `raft.peers`", "node_id"),
    Key(
        "raft.bindAddr",
        "RAFT_BIND_ADDR",
        ADDRESS,
        "where the link listens; without it, this node's address in `raft.peers`",
    ),
    Key(
        "raft.peers",
        "RAFT_PEERS",
        each(ADDRESS),
        "link address of every first node, or of nodes that are there, and of this one; without "
        "it, a cluster of one",
        "peers",
    ),
    Key(
        "raft.peerHTTPAddrs",
        "RAFT_PEER_HTTP_ADDRS",
        each(URL),
        "base URL of every node; without it, the peer's link host and this node's `port`",
    ),
    Key(
        "raft.heartbeatMS",
        "RAFT_HEARTBEAT_MS",
        whole(10, 10_000),
        "between a leader's heartbeats",
        "raft.heartbeat_ms",
    ),
    Key(
        "raft.electionMS",
        "RAFT_ELECTION_MS",
        whole(50, 60_000),
        "a follower stands after once to twice this in silence; at least 3 heartbeats",
        "raft.election_ms",
    ),
    Key(
        "raft.fallbackMS",
        "RAFT_FALLBACK_MS",
        whole(50, 120_000),
        "a leader without a majority for this long steps down; at least 3 heartbeats",
        "raft.fallback_ms",
    ),
    Key(
        "raft.turnMS",
        "RAFT_TURN_MS",
        whole(0, 100),
        "between two turns of one group; longer gathers more in an entry and costs latency",
        "raft.turn_ms",
    ),
    Key(
        "raft.appendBytesMax",
        "RAFT_APPEND_BYTES_MAX",
        whole(64 * 1024, 256 * _MIB),
        "of entries in one append message; below `link.frameBytesMax`",
        "raft.append_bytes_max",
    ),
    Key(
        "raft.entryBytesMax",
        "RAFT_ENTRY_BYTES_MAX",
        whole(32 * 1024, 128 * _MIB),
        "of one entry; below `raft.appendBytesMax`",
        "raft.entry_bytes_max",
    ),
    Key(
        "raft.entriesInFlightMax",
        "RAFT_ENTRIES_IN_FLIGHT_MAX",
        whole(1, 1024),
        "proposed and not applied, a shard",
        "raft.entries_in_flight_max",
    ),
    Key(
        "raft.cacheBytesMax",
        "RAFT_CACHE_BYTES_MAX",
        whole(64 * 1024, 4096 * _MIB),
        "of recent log entries in memory, a shard",
        "raft.cache_bytes_max",
    ),
    Key(
        "raft.keepEntries",
        "RAFT_KEEP_ENTRIES",
        whole(1, 100_000_000),
        "of the log, behind the slowest peer",
        "raft.keep_entries",
    ),
    Key(
        "raft.logBytesMax",
        "RAFT_LOG_BYTES_MAX",
        whole(2**20, 2**36),
        "of a shard's log; a peer that lacks what is forgotten then gets a snapshot",
        "raft.log_bytes_max",
    ),
    Key(
        "raft.logEntriesMax",
        "RAFT_LOG_ENTRIES_MAX",
        whole(1000, 10**8),
        "the same in entries",
        "raft.log_entries_max",
    ),
    Key(
        "raft.snapshotBytesPerSecond",
        "RAFT_SNAPSHOT_BYTES_PER_SECOND",
        whole(2**16, 2**40),
        "pace at which a shard's state is fetched from a peer",
        "raft.snapshot_bytes_per_s",
    ),
)

_TLS = (
    Key(
        "tls.certFile",
        "TLS_CERT_FILE",
        PATH,
        "certificate of the HTTP port and its chain, PEM; with `tls.keyFile`, the port is https",
        "tls.cert_file",
    ),
    Key("tls.keyFile", "TLS_KEY_FILE", PATH, "its private key, PEM, no password", "tls.key_file"),
    Key(
        "raft.tls.certFile",
        "RAFT_TLS_CERT_FILE",
        PATH,
        "this node's certificate on the link, PEM; its DNS names hold `raft.selfId`",
        "link_tls.cert_file",
    ),
    Key(
        "raft.tls.keyFile",
        "RAFT_TLS_KEY_FILE",
        PATH,
        "its private key, PEM, no password",
        "link_tls.key_file",
    ),
    Key(
        "raft.tls.caFile",
        "RAFT_TLS_CA_FILE",
        PATH,
        "who may sign the certificate of a node, PEM; with the two above, the link is TLS",
        "link_tls.ca_file",
    ),
)

_LIFECYCLE = (
    Key(
        "defaultLeaseSeconds",
        "DEFAULT_LEASE_SECONDS",
        whole(1, 12 * 3600),
        "lease of a claim that names none",
        "lifecycle.default_lease_seconds",
    ),
    Key(
        "maxAttemptsDefault",
        "MAX_ATTEMPTS_DEFAULT",
        whole(1, 1000),
        "attempts of a task that names none",
        "lifecycle.max_attempts_default",
    ),
    Key(
        "backoffPolicy",
        "BACKOFF_POLICY",
        member(BackoffPolicy),
        "how the delay of a nack grows with the attempts",
        "lifecycle.backoff_policy",
    ),
    Key(
        "backoffBaseSeconds",
        "BACKOFF_BASE_SECONDS",
        whole(0, _YEAR_SECONDS),
        "delay after the first attempt",
        "lifecycle.backoff_base_seconds",
    ),
    Key(
        "backoffMaxSeconds",
        "BACKOFF_MAX_SECONDS",
        whole(0, _YEAR_SECONDS),
        "longest delay; at least `backoffBaseSeconds`",
        "lifecycle.backoff_max_seconds",
    ),
    Key(
        "retentionSeconds",
        "RETENTION_SECONDS",
        whole(1, 2**31 - 1),
        "a finished task and its result are kept this long",
        "lifecycle.retention_seconds",
    ),
    Key(
        "dlqRetentionSeconds",
        "DLQ_RETENTION_SECONDS",
        whole(1, 2**31 - 1),
        "a dead letter is kept this long",
        "lifecycle.dlq_retention_seconds",
    ),
    Key(
        "auditRetentionSeconds",
        "AUDIT_RETENTION_SECONDS",
        whole(1, 2**31 - 1),
        "the record of an operator's action is kept this long",
        "lifecycle.audit_retention_seconds",
    ),
    Key(
        "leaseGraceSeconds",
        "LEASE_GRACE_SECONDS",
        number(0, 3600),
        "a lease is taken back this long after its end",
        "lifecycle.lease_grace_seconds",
    ),
)


def _section(section: str, table: tuple[tuple[str, int, int, str], ...]) -> tuple[Key, ...]:
    """Make keys `section.camelCase` of the whole-number fields of one settings class."""
    return tuple(
        Key(
            f"{section}.{_camel(field)}",
            f"{section}_{field}".upper(),
            whole(low, high),
            meaning,
            f"{section}.{field}",
        )
        for field, low, high, meaning in table
    )


def _camel(field: str) -> str:
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


_LIMITS = _section(
    "limits",
    (
        ("max_body_bytes", 1024, 64 * _MIB, "of a request; below `raft.entryBytesMax`"),
        ("max_result_bytes", 1024, 64 * _MIB, "of a result's JSON text"),
        ("max_error_bytes", 1024, 2**20, "of a result's error text"),
        ("max_artifact_bytes", 1024, 1024 * _MIB, "of one artifact"),
        ("batch_max", 1, 10_000, "items of one batch request"),
        ("payload_depth_max", 1, 900, "nesting of a payload"),
        ("idempotency_key_bytes_max", 1, 4096, "of an idempotency key"),
        ("max_attempts_max", 1, 1_000_000, "largest `maxAttempts` of a task"),
        ("lease_seconds_max", 1, _YEAR_SECONDS, "longest lease"),
        ("delay_seconds_max", 1, 10 * _YEAR_SECONDS, "largest `delaySeconds` and `ttlSeconds`"),
        ("claim_wait_seconds_max", 0, 300, "longest wait of a claim"),
        ("result_wait_seconds_max", 0, 300, "longest wait for a result"),
        ("request_timeout_ms", 100, 300_000, "from a request to its answer, waits not counted"),
        ("operations_queued_max", 1, 10_000_000, "waiting for a shard's next entry; then 503"),
        ("operations_queued_bytes_max", _MIB, 16_384 * _MIB, "the same in bytes"),
        ("waiters_max", 1, 10_000_000, "waiting claims of one node, and as many result reads"),
        ("connections_max", 1, 1_000_000, "HTTP connections of one node"),
        ("header_timeout_ms", 100, 600_000, "to send a request's head"),
        ("body_timeout_ms", 100, 600_000, "to send a request's body"),
        ("idle_timeout_ms", 100, 3_600_000, "a connection may stay idle"),
        (
            "drain_ms",
            0,
            300_000,
            "`/readyz` is 503 before a node that stops sends clients away; balancers look oftener",
        ),
    ),
)
_LINK = _section(
    "link",
    (
        ("frame_bytes_max", 128 * 1024, 1024 * _MIB, "of one frame between nodes"),
        ("queue_bytes_max", _MIB, 16_384 * _MIB, "waiting to be sent to one peer"),
        ("handshake_timeout_ms", 10, 60_000, "a new connection has this long to prove itself"),
        ("dial_timeout_ms", 10, 60_000, "to open a connection"),
        ("redial_ms", 1, 60_000, "first pause before a peer is dialled again"),
        ("redial_ms_max", 1, 600_000, "longest such pause; at least `link.redialMs`"),
        ("ping_ms", 10, 60_000, "an idle direction carries a ping after this long"),
        ("silence_ms_max", 20, 600_000, "a silent connection is given up; above `link.pingMs`"),
        ("rpc_in_flight_max", 1, 1_000_000, "calls to one peer without an answer yet"),
        ("unknown_connections_max", 1, 100_000, "connections that have not proved themselves"),
    ),
)
_STORE = _section(
    "store",
    (
        ("block_cache_bytes", _MIB, 2**40, "of RocksDB's block cache, all shards together"),
        ("memtable_bytes", _MIB, 4096 * _MIB, "of one memtable"),
        ("bloom_bits", 1, 32, "of a key in the bloom filters"),
        (
            "min_free_bytes",
            0,
            2**40,
            "free on the disk; a node with less steps back; 0 waits until a write fails",
        ),
    ),
)

_ARTIFACTS = (
    Key(
        "artifacts.provider",
        "ARTIFACTS_PROVIDER",
        member(ArtifactProvider),
        "where artifacts are kept: `none` refuses them, `local` a directory, `s3` a bucket",
        "artifacts.provider",
    ),
    Key(
        "artifacts.publicUrl",
        "ARTIFACTS_PUBLIC_URL",
        URL,
        "what the URLs of stored artifacts begin with; without it they are paths",
        "artifacts.public_url",
    ),
    Key(
        "artifacts.directory",
        "ARTIFACTS_DIRECTORY",
        PATH,
        "of the provider `local`, a must with it",
        "artifacts.directory",
    ),
    Key(
        "artifacts.s3.bucket",
        "ARTIFACTS_S3_BUCKET",
        HOST,
        "of the provider `s3`, a must with it; it is not made",
        "artifacts.s3_bucket",
    ),
    Key(
        "artifacts.s3.endpoint",
        "ARTIFACTS_S3_ENDPOINT",
        URL,
        "base URL of the store; without it, AWS",
        "artifacts.s3_endpoint",
    ),
    Key(
        "artifacts.s3.region",
        "ARTIFACTS_S3_REGION",
        TEXT,
        "that requests are signed for",
        "artifacts.s3_region",
    ),
    Key(
        "artifacts.s3.prefix",
        "ARTIFACTS_S3_PREFIX",
        KEY_PREFIX,
        "of every key in the bucket",
        "artifacts.s3_prefix",
    ),
    Key(
        "artifacts.s3.accessKeyId",
        "ARTIFACTS_S3_ACCESS_KEY_ID",
        TEXT,
        "without it, the credentials that AWS's own tools would find",
        "artifacts.s3_access_key_id",
        secret=True,
    ),
    Key(
        "artifacts.s3.secretAccessKey",
        "ARTIFACTS_S3_SECRET_ACCESS_KEY",
        TEXT,
        "goes with `artifacts.s3.accessKeyId`",
        "artifacts.s3_secret_access_key",
        secret=True,
    ),
    Key(
        "artifacts.s3.allowHttp",
        "ARTIFACTS_S3_ALLOW_HTTP",
        FLAG,
        "the endpoint may be one without TLS",
        "artifacts.s3_allow_http",
    ),
    Key(
        "artifacts.s3.virtualHosted",
        "ARTIFACTS_S3_VIRTUAL_HOSTED",
        FLAG,
        "the bucket is in the endpoint's host name, not in the path",
        "artifacts.s3_virtual_hosted",
    ),
    Key(
        "artifacts.timeoutMs",
        "ARTIFACTS_TIMEOUT_MS",
        whole(100, 600_000),
        "of an upload, of a deletion, and of each step of a download",
        "artifacts.timeout_ms",
    ),
    Key(
        "artifacts.uploadsMax",
        "ARTIFACTS_UPLOADS_MAX",
        whole(1, 1000),
        "uploads under way on one node; each has up to 32 MiB in memory",
        "artifacts.uploads_max",
    ),
)

_BACKUP = (
    Key(
        "backup.directory",
        "BACKUP_DIRECTORY",
        PATH,
        "where this node keeps the backups it takes; on another disk than the data",
        "backup.directory",
    ),
    Key(
        "backup.s3.bucket",
        "BACKUP_S3_BUCKET",
        HOST,
        "keeps them instead of a directory; it is not made",
        "backup.s3_bucket",
    ),
    Key(
        "backup.s3.endpoint",
        "BACKUP_S3_ENDPOINT",
        URL,
        "base URL of the store; without it, AWS",
        "backup.s3_endpoint",
    ),
    Key(
        "backup.s3.region",
        "BACKUP_S3_REGION",
        TEXT,
        "that requests are signed for",
        "backup.s3_region",
    ),
    Key(
        "backup.s3.prefix",
        "BACKUP_S3_PREFIX",
        KEY_PREFIX,
        "of every key in the bucket",
        "backup.s3_prefix",
    ),
    Key(
        "backup.s3.accessKeyId",
        "BACKUP_S3_ACCESS_KEY_ID",
        TEXT,
        "without it, the credentials that AWS's own tools would find",
        "backup.s3_access_key_id",
        secret=True,
    ),
    Key(
        "backup.s3.secretAccessKey",
        "BACKUP_S3_SECRET_ACCESS_KEY",
        TEXT,
        "goes with `backup.s3.accessKeyId`",
        "backup.s3_secret_access_key",
        secret=True,
    ),
    Key(
        "backup.s3.allowHttp",
        "BACKUP_S3_ALLOW_HTTP",
        FLAG,
        "the endpoint may be one without TLS",
        "backup.s3_allow_http",
    ),
    Key(
        "backup.s3.virtualHosted",
        "BACKUP_S3_VIRTUAL_HOSTED",
        FLAG,
        "the bucket is in the endpoint's host name, not in the path",
        "backup.s3_virtual_hosted",
    ),
    Key(
        "backup.timeoutMs",
        "BACKUP_TIMEOUT_MS",
        whole(100, 600_000),
        "silence of the store that is put up with",
        "backup.timeout_ms",
    ),
    Key(
        "backup.keep",
        "BACKUP_KEEP",
        whole(1, 10_000),
        "complete backups that stay when a new one is verified",
        "backup.keep",
    ),
    Key(
        "backup.bytesPerSecond",
        "BACKUP_BYTES_PER_SECOND",
        whole(2**16, 2**34),
        "of rows that are read for a backup, at most",
        "backup.bytes_per_second",
    ),
)

_AUTH = (
    Key(
        "auth.tenantFallback",
        "AUTH_TENANT_FALLBACK",
        choice("deny", "subject", "default"),
        "the tenant of a token that names none",
        "auth.tenant_fallback",
    ),
    Key(
        "allowProducerAsWorker",
        "ALLOW_PRODUCER_AS_WORKER",
        FLAG,
        "a producer token serves on worker routes",
        "auth.allow_producer_as_worker",
    ),
    Key(
        "allowedClockSkewSeconds",
        "ALLOWED_CLOCK_SKEW_SECONDS",
        whole(0, 3600),
        "tolerated between a token's issuer and this node",
        "auth.clock_skew_seconds",
    ),
    Key(
        "auth.cachedTokensMax",
        "AUTH_CACHED_TOKENS_MAX",
        whole(1, 10_000_000),
        "verified tokens remembered until they expire",
        "auth.cached_tokens_max",
    ),
    Key(
        "auth.allowHttpJwks",
        "AUTH_ALLOW_HTTP_JWKS",
        FLAG,
        "published keys may come from another host over plain HTTP",
        "auth.allow_http_jwks",
    ),
    Key(
        "auth.producer",
        "AUTH_PRODUCER",
        ANYTHING,
        "list of providers for producer routes, see below",
        secret=True,
    ),
    Key(
        "auth.worker",
        "AUTH_WORKER",
        ANYTHING,
        "list of providers for worker routes, see below",
        secret=True,
    ),
    Key(
        "producerAuthProvider",
        "PRODUCER_AUTH_PROVIDER",
        choice("jwks", "static", "hs256", "multi"),
        "kind of `producerAuthConfig`",
    ),
    Key(
        "producerAuthConfig",
        "PRODUCER_AUTH_CONFIG",
        ANYTHING,
        "one provider, a mapping or its JSON text",
        secret=True,
    ),
    Key(
        "workerAuthProvider",
        "WORKER_AUTH_PROVIDER",
        choice("jwks", "static", "hs256", "multi"),
        "kind of `workerAuthConfig`",
    ),
    Key(
        "workerAuthConfig",
        "WORKER_AUTH_CONFIG",
        ANYTHING,
        "one provider, a mapping or its JSON text",
        secret=True,
    ),
    Key("identityJwksUrl", "IDENTITY_JWKS_URL", URL, "keys of producer tokens"),
    Key("identityIssuer", "IDENTITY_ISSUER", TEXT, "issuer of producer tokens"),
    Key("identityAudience", "IDENTITY_AUDIENCE", TEXT, "audience of producer tokens"),
    Key("workerJwksUrl", "WORKER_JWKS_URL", URL, "keys of worker tokens"),
    Key("workerIssuer", "WORKER_ISSUER", TEXT, "issuer of worker tokens"),
    Key("workerAudience", "WORKER_AUDIENCE", TEXT, "audience of worker tokens"),
)

_WEBHOOKS = (
    Key(
        "webhookHmacSecret",
        "WEBHOOK_HMAC_SECRET",
        SECRET,
        "signs what is sent to webhooks; without it, nothing is signed",
        "webhooks.hmac_secret",
        secret=True,
    ),
    Key(
        "webhookHmacPreviousSecret",
        "WEBHOOK_HMAC_PREVIOUS_SECRET",
        SECRET,
        "the secret before it, signs beside it while receivers change over",
        "webhooks.hmac_previous_secret",
        secret=True,
    ),
    Key(
        "resultWebhookMaxAttempts",
        "RESULT_WEBHOOK_MAX_ATTEMPTS",
        whole(1, 100),
        "attempts of one delivery; then it is a dead delivery",
        "webhooks.max_attempts",
    ),
    Key(
        "resultWebhookBaseBackoffSeconds",
        "RESULT_WEBHOOK_BASE_BACKOFF_SECONDS",
        whole(0, 86_400),
        "wait after the first attempt; doubles with each",
        "webhooks.base_backoff_seconds",
    ),
    Key(
        "resultWebhookMaxBackoffSeconds",
        "RESULT_WEBHOOK_MAX_BACKOFF_SECONDS",
        whole(0, 86_400),
        "longest such wait; at least `resultWebhookBaseBackoffSeconds`",
        "webhooks.max_backoff_seconds",
    ),
    Key(
        "resultWebhookMaxAgeSeconds",
        "RESULT_WEBHOOK_MAX_AGE_SECONDS",
        whole(1, 2_592_000),
        "a delivery pending for so long is a dead delivery, tried or not",
        "webhooks.max_age_seconds",
    ),
    Key(
        "webhooks.allowPrivate",
        "WEBHOOKS_ALLOW_PRIVATE",
        FLAG,
        "loopback, link-local and private targets are sent to, for development",
        "webhooks.allow_private",
    ),
    Key(
        "webhooks.timeoutSeconds",
        "WEBHOOKS_TIMEOUT_SECONDS",
        number(0.1, 300),
        "from the look-up of a target's name to its answer",
        "webhooks.timeout_seconds",
    ),
    Key(
        "webhooks.perHostConcurrency",
        "WEBHOOKS_PER_HOST_CONCURRENCY",
        whole(1, 10_000),
        "at once to one host and port; at most `webhooks.concurrency`",
        "webhooks.per_host_concurrency",
    ),
    Key(
        "webhooks.concurrency",
        "WEBHOOKS_CONCURRENCY",
        whole(1, 10_000),
        "at once from this node",
        "webhooks.concurrency",
    ),
)

# The variables are those every OpenTelemetry SDK knows.
_TRACING = (
    Key(
        "tracing.otlpEndpoint",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        URL,
        "base URL of an OTLP/HTTP collector; without it no spans are made",
        "tracing.otlp_endpoint",
    ),
    Key(
        "tracing.sampleRatio",
        "OTEL_TRACES_SAMPLER_ARG",
        number(0, 1),
        "of the traces that begin here; a caller's own decision is followed",
        "tracing.sample_ratio",
    ),
    Key(
        "tracing.serviceName",
        "OTEL_SERVICE_NAME",
        TEXT,
        "what the spans' service is called",
        "tracing.service_name",
    ),
    Key(
        "tracing.headers",
        "OTEL_EXPORTER_OTLP_HEADERS",
        HEADERS,
        "sent with every export, for a collector that wants a key",
        "tracing.headers",
        secret=True,
    ),
)


def _rate(scope: str, what: str) -> tuple[Key, ...]:
    """Make the two keys of one rate limit."""
    return (
        Key(
            f"rateLimit.{scope}.requestsPerMinute",
            f"RATE_LIMIT_{scope.upper()}_REQUESTS_PER_MINUTE",
            whole(0, PER_MINUTE_MAX),
            f"{what}; 0 for no limit",
            f"rate_limit.{scope}_requests_per_minute",
        ),
        Key(
            f"rateLimit.{scope}.burstSize",
            f"RATE_LIMIT_{scope.upper()}_BURST_SIZE",
            whole(0, BURST_MAX),
            "how many at once after a pause; above 0 with a limit",
            f"rate_limit.{scope}_burst_size",
        ),
    )


_RATES = (
    *_rate("producer", "creates of a tenant, each task of a batch"),
    *_rate("worker", "claims of a tenant, a batch as one"),
    *_rate("admin", "clean-ups of a tenant"),
    *_rate("webhook", "calls made for a tenant; those beyond it wait"),
    Key(
        "rateLimit.tenants",
        "RATE_LIMIT_TENANTS",
        TENANT_RATES,
        "tenants with limits of their own, `_` for the default tenant",
    ),
)

_BUDGETS = (
    Key(
        "budgets.readyTasks",
        "BUDGETS_READY_TASKS",
        whole(0, BOUND_MAX),
        "tasks of a tenant that wait, ready or delayed; 0 for no bound",
        "budgets.ready_tasks",
    ),
    Key(
        "budgets.inFlight",
        "BUDGETS_IN_FLIGHT",
        whole(0, BOUND_MAX),
        "tasks of a tenant in progress; 0 for no bound",
        "budgets.in_flight",
    ),
    Key(
        "budgets.storedBytes",
        "BUDGETS_STORED_BYTES",
        whole(0, BOUND_MAX),
        "payloads and results kept for a tenant; 0 for no bound",
        "budgets.stored_bytes",
    ),
    Key(
        "budgets.tenants",
        "BUDGETS_TENANTS",
        TENANT_BUDGETS,
        "tenants with bounds of their own, `_` for the default tenant",
    ),
)

KEYS: tuple[Key, ...] = (
    *_NODE,
    *_TRACING,
    *_RAFT,
    *_TLS,
    *_LIFECYCLE,
    *_AUTH,
    *_ARTIFACTS,
    *_BACKUP,
    *_LIMITS,
    *_RATES,
    *_BUDGETS,
    *_LINK,
    *_STORE,
    *_WEBHOOKS,
)

# Names of the reference that change nothing here, accepted so that its files load, each with
# the reason it has no effect.
IGNORED: dict[str, str] = {
    "requeueInspectLimit": "expired leases are found by time, not by inspecting a queue",
    "env": "no mode relaxes a check",
    "timezone": "every time is UTC",
    "logFormat": "logs are JSON",
    "tracingEnabled": "`tracing.otlpEndpoint` decides",
    "tracingOtlpEndpoint": "it is for gRPC; `tracing.otlpEndpoint` is for HTTP",
    "tracingOtlpInsecure": "the scheme of `tracing.otlpEndpoint` decides",
    "tracingSampleRatio": "`tracing.sampleRatio` decides",
    "tracingServiceName": "`tracing.serviceName` decides",
    "persistenceProvider": "there is one store",
    "persistenceConfig.fsyncOnCommit": "`durability` decides",
    "raft.enabled": "every node replicates",
    "raft.bootstrap": "a new cluster begins when all nodes of `raft.peers` are there",
    "raft.muxEnabled": "the shards always share one link",
}
