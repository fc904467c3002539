"""Keys: the table of every setting, its name in a file and in the environment, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from codeq_cluster.config.kinds import (
    ADDRESS,
    ANYTHING,
    FLAG,
    HOST,
    ID,
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
from codeq_cluster.settings import BackoffPolicy, Durability

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
        whole(1, 256),
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
        "link address of every node, this one included; without it, a cluster of one",
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
        ("batch_max", 1, 10_000, "items of one batch request"),
        ("payload_depth_max", 1, 900, "nesting of a payload"),
        ("idempotency_key_bytes_max", 1, 4096, "of an idempotency key"),
        ("max_attempts_max", 1, 1_000_000, "largest `maxAttempts` of a task"),
        ("lease_seconds_max", 1, _YEAR_SECONDS, "longest lease"),
        ("delay_seconds_max", 1, 10 * _YEAR_SECONDS, "furthest `delaySeconds` and `runAt`"),
        ("claim_wait_seconds_max", 0, 300, "longest wait of a claim"),
        ("result_wait_seconds_max", 0, 300, "longest wait for a result"),
        ("request_timeout_ms", 100, 300_000, "from a request to its answer, waits not counted"),
        ("operations_queued_max", 1, 10_000_000, "waiting for a shard's next entry; then 503"),
        ("operations_queued_bytes_max", _MIB, 16_384 * _MIB, "the same in bytes"),
        ("waiters_max", 1, 10_000_000, "waiting claims and result reads of one node"),
        ("connections_max", 1, 1_000_000, "HTTP connections of one node"),
        ("header_timeout_ms", 100, 600_000, "to send a request's head"),
        ("body_timeout_ms", 100, 600_000, "to send a request's body"),
        ("idle_timeout_ms", 100, 3_600_000, "a connection may stay idle"),
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

KEYS: tuple[Key, ...] = (*_NODE, *_RAFT, *_LIFECYCLE, *_AUTH, *_LIMITS, *_LINK, *_STORE)

# Names of the reference that change nothing here, accepted so that its files load, each with
# the reason it has no effect.
IGNORED: dict[str, str] = {
    "requeueInspectLimit": "expired leases are found by time, not by inspecting a queue",
    "env": "no mode relaxes a check",
    "timezone": "every time is UTC",
    "logFormat": "logs are JSON",
    "persistenceProvider": "there is one store",
    "persistenceConfig.fsyncOnCommit": "`durability` decides",
    "raft.enabled": "every node replicates",
    "raft.bootstrap": "a cluster forms itself from `raft.peers`",
    "raft.muxEnabled": "the shards always share one link",
}
