"""Tasks: what happens to one by default, and the bounds that a request can meet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from codeq_cluster.core import bounds
from codeq_cluster.settings.key import key
from codeq_cluster.settings.kinds import MIB, member, number, whole

_DAY_SECONDS = 86400
_YEAR_SECONDS = 366 * _DAY_SECONDS


class BackoffPolicy(StrEnum):
    """How the delay of a nack grows with the attempts."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    EXP_EQUAL_JITTER = "exp_equal_jitter"
    EXP_FULL_JITTER = "exp_full_jitter"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleSettings:
    """A task's defaults."""

    default_lease_seconds: int = key(300, whole(1, 12 * 3600), "lease of a claim that names none")
    max_attempts_default: int = key(5, whole(1, 1000), "attempts of a task that names no maximum")
    backoff_policy: BackoffPolicy = key(
        BackoffPolicy.EXP_FULL_JITTER,
        member(BackoffPolicy),
        "how the delay after a nack grows with the attempts",
    )
    backoff_base_seconds: int = key(5, whole(0, _YEAR_SECONDS), "delay after the first attempt")
    backoff_max_seconds: int = key(
        900, whole(0, _YEAR_SECONDS), "longest delay; at least `backoffBaseSeconds`"
    )
    retention_seconds: int = key(
        _DAY_SECONDS, whole(1, 2**31 - 1), "a finished task and its result are kept this long"
    )
    dlq_retention_seconds: int = key(
        7 * _DAY_SECONDS, whole(1, 2**31 - 1), "a dead letter is kept this long"
    )
    audit_retention_seconds: int = key(
        90 * _DAY_SECONDS,
        whole(1, 2**31 - 1),
        "the record of an admin's or operator's action is kept this long",
    )
    lease_grace_seconds: float = key(
        2.0,
        number(0, 3600),
        "a new leader ends no lease for this long, so that workers can renew theirs",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Every bound a user can meet, each with its reason."""

    # Larger results are artifacts.
    max_body_bytes: int = key(
        MIB,
        whole(1024, bounds.BODY_BYTES_MAX),
        "size of a request's body; below `raft.entryBytesMax`",
    )
    max_result_bytes: int = key(
        MIB, whole(1024, bounds.BODY_BYTES_MAX), "size of a result's JSON text"
    )
    # It is kept with the task and with the result.
    max_error_bytes: int = key(
        64 * 1024, whole(1024, bounds.ERROR_BYTES_MAX), "size of a result's error text"
    )
    # It passes through a node's memory.
    max_artifact_bytes: int = key(64 * MIB, whole(1024, 1024 * MIB), "size of one artifact")
    batch_max: int = key(100, whole(1, 10_000), "items in one batch request")
    # Each costs about 1 KiB of every node's memory on every shard where it has tasks.
    queues_max: int = key(
        10_000,
        whole(1, 1_000_000),
        "a tenant with so many queues on any shard begins no more; a queue counts while it has "
        "tasks, ended ones included",
    )
    # Deeper JSON breaks readers, not the broker.
    payload_depth_max: int = key(200, whole(1, bounds.JSON_DEPTH_MAX), "nesting depth of a payload")
    # It is a part of a key of the store.
    idempotency_key_bytes_max: int = key(
        256, whole(1, bounds.KEY_BYTES_MAX), "size of an idempotency key"
    )
    # A task that always fails must become a dead letter in time.
    max_attempts_max: int = key(
        1000, whole(1, bounds.ATTEMPTS_MAX), "largest `maxAttempts` of a task"
    )
    # A dead worker's task waits this long.
    lease_seconds_max: int = key(12 * 3600, whole(1, _YEAR_SECONDS), "longest lease")
    # A larger value is likely a wrong unit.
    delay_seconds_max: int = key(
        _YEAR_SECONDS, whole(1, 10 * _YEAR_SECONDS), "largest `delaySeconds` and `ttlSeconds`"
    )
    # Each wait holds a connection, which proxies cut after 60 s.
    claim_wait_seconds_max: int = key(30, whole(0, 300), "longest wait of a claim")
    result_wait_seconds_max: int = key(60, whole(0, 300), "longest wait for a result")
    request_timeout_ms: int = key(
        10_000,
        whole(100, 300_000),
        "time from a request to its answer, without the waits it asks for",
    )
    operations_queued_max: int = key(
        20_000,
        whole(1, 10_000_000),
        "operations waiting for a shard's next entry; beyond it, callers get 503",
    )
    operations_queued_bytes_max: int = key(
        64 * MIB,
        whole(MIB, 16_384 * MIB),
        "size of the operations waiting for a shard's next entry; beyond it, callers get 503",
    )
    # Each costs about a millisecond of the loop's time, and with more of them a tenant that sends
    # without end keeps others waiting for longer; fewer share the cost of an entry less well.
    requests_in_progress: int = key(
        64,
        whole(2, 1_000_000),
        "requests in progress on one node, each counted once, and again for every 4 KiB of its "
        "body and for every 6 tasks of a batch; beyond it tenants take turns, and beside others "
        "a single one gets half",
    )
    # Each costs a few KiB and a connection.
    waiters_max: int = key(
        20_000,
        whole(1, 10_000_000),
        "claims and result reads that may wait on one node, at most `limits.connectionsMax`; a "
        "single tenant gets half, a single token's subject a quarter",
    )
    # Each looks at every event of the node, 50 times a second at most, and holds a connection.
    event_streams_max: int = key(
        200,
        whole(1, 10_000),
        "callers that may watch events on one node; a single tenant gets half, a single token's "
        "subject a quarter",
    )
    # Each costs a descriptor and buffers.
    connections_max: int = key(
        10_000,
        whole(1, 1_000_000),
        "HTTP connections of one node, at most half of the files that its process may open; an "
        "address gets at most half, except those in `proxies.trusted`",
    )
    # A proxy or gateway has many users behind one address, so a proxy should be trusted.
    unauthenticated_bytes_max: int = key(
        32 * MIB,
        whole(64 * 1024, 16_384 * MIB),
        "size of the incomplete heads and log-ins on one node; an address gets at most half",
    )
    # An answer has up to 15 MiB, and a client some time to take it.
    unread_bytes_max: int = key(
        256 * MIB,
        whole(16 * MIB, 16_384 * MIB),
        "size of the answers that one node holds because clients do not read them; an address gets "
        "at most half, except those in `proxies.trusted`",
    )
    # From its first byte to its last; a slower client is stalled.
    header_timeout_ms: int = key(10_000, whole(100, 600_000), "time to send a request's head")
    # A client has the same time to read its part of an answer.
    body_timeout_ms: int = key(30_000, whole(100, 600_000), "time to send a request's body")
    # The least rate keeps a client that drips from holding its connection for the whole time above.
    body_bytes_per_s_min: int = key(
        16 * 1024,
        whole(1, 1024 * MIB),
        "a body must arrive at this rate, once `limits.headerTimeoutMs` is over; uploads too",
        name="limits.bodyBytesPerSecondMin",
    )
    # Longer than the 60 s of usual proxies, which would otherwise send a request into a closing
    # connection.
    idle_timeout_ms: int = key(
        75_000, whole(100, 3_600_000), "time that a connection may stay idle"
    )
    drain_ms: int = key(
        1000,
        whole(0, 300_000),
        "a stopping node answers 503 to `/readyz` for this long before it closes connections; "
        "set it above the interval of a load balancer's checks",
    )
