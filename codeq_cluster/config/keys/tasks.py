"""Keys of tasks: what happens to one by default, and the bounds that a request can meet."""

from __future__ import annotations

from codeq_cluster.config.key import key
from codeq_cluster.config.kinds import member, number, whole
from codeq_cluster.settings import BackoffPolicy

_MIB = 2**20
_YEAR_SECONDS = 366 * 86400

LIFECYCLE = (
    key(
        "defaultLeaseSeconds",
        whole(1, 12 * 3600),
        "lease of a claim that names none",
        path="lifecycle.",
    ),
    key(
        "maxAttemptsDefault",
        whole(1, 1000),
        "attempts of a task that names none",
        path="lifecycle.",
    ),
    key(
        "backoffPolicy",
        member(BackoffPolicy),
        "how the delay of a nack grows with the attempts",
        path="lifecycle.",
    ),
    key(
        "backoffBaseSeconds",
        whole(0, _YEAR_SECONDS),
        "delay after the first attempt",
        path="lifecycle.",
    ),
    key(
        "backoffMaxSeconds",
        whole(0, _YEAR_SECONDS),
        "longest delay; at least `backoffBaseSeconds`",
        path="lifecycle.",
    ),
    key(
        "retentionSeconds",
        whole(1, 2**31 - 1),
        "a finished task and its result are kept this long",
        path="lifecycle.",
    ),
    key(
        "dlqRetentionSeconds",
        whole(1, 2**31 - 1),
        "a dead letter is kept this long",
        path="lifecycle.",
    ),
    key(
        "auditRetentionSeconds",
        whole(1, 2**31 - 1),
        "the record of an admin's or operator's action is kept this long",
        path="lifecycle.",
    ),
    key(
        "leaseGraceSeconds",
        number(0, 3600),
        "a lease is taken back this long after its end",
        path="lifecycle.",
    ),
)

LIMITS = (
    key("limits.maxBodyBytes", whole(1024, 64 * _MIB), "of a request; below `raft.entryBytesMax`"),
    key("limits.maxResultBytes", whole(1024, 64 * _MIB), "of a result's JSON text"),
    key("limits.maxErrorBytes", whole(1024, 2**20), "of a result's error text"),
    key("limits.maxArtifactBytes", whole(1024, 1024 * _MIB), "of one artifact"),
    key("limits.batchMax", whole(1, 10_000), "items of one batch request"),
    key("limits.payloadDepthMax", whole(1, 900), "nesting of a payload"),
    key("limits.idempotencyKeyBytesMax", whole(1, 4096), "of an idempotency key"),
    key("limits.maxAttemptsMax", whole(1, 1_000_000), "largest `maxAttempts` of a task"),
    key("limits.leaseSecondsMax", whole(1, _YEAR_SECONDS), "longest lease"),
    key(
        "limits.delaySecondsMax",
        whole(1, 10 * _YEAR_SECONDS),
        "largest `delaySeconds` and `ttlSeconds`",
    ),
    key("limits.claimWaitSecondsMax", whole(0, 300), "longest wait of a claim"),
    key("limits.resultWaitSecondsMax", whole(0, 300), "longest wait for a result"),
    key(
        "limits.requestTimeoutMs",
        whole(100, 300_000),
        "from a request to its answer, waits not counted",
    ),
    key(
        "limits.operationsQueuedMax",
        whole(1, 10_000_000),
        "waiting for a shard's next entry; then 503",
    ),
    key("limits.operationsQueuedBytesMax", whole(_MIB, 16_384 * _MIB), "the same in bytes"),
    key(
        "limits.waitersMax",
        whole(1, 10_000_000),
        "waiting claims of one node, and as many result reads",
    ),
    key("limits.connectionsMax", whole(1, 1_000_000), "HTTP connections of one node"),
    key("limits.headerTimeoutMs", whole(100, 600_000), "to send a request's head"),
    key("limits.bodyTimeoutMs", whole(100, 600_000), "to send a request's body"),
    key("limits.idleTimeoutMs", whole(100, 3_600_000), "a connection may stay idle"),
    key(
        "limits.drainMs",
        whole(0, 300_000),
        "`/readyz` is 503 before a node that stops sends clients away; balancers look oftener",
    ),
)
