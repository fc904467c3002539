"""Reference: codeQ's configuration keys that this broker does not have, and why each is ignored.

Keys that both have are in `keys`. `translation` translates those with another name here, or with a
meaning that depends on other keys. The rest carry the reason why they are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from codeq_cluster.settings.key import variable_of


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """One key of codeQ.

    Attributes:
        name: In a file, dots between levels; of a variable without a key, the variable.
        env: The variable; empty for a key that only a file has.
        reason: Why it is ignored; empty if `translation` decides.
    """

    name: str
    env: str
    reason: str


def _key(name: str, reason: str) -> ForeignKey:
    return ForeignKey(name, variable_of(name), reason)


def _in_file(name: str, reason: str) -> ForeignKey:
    return ForeignKey(name, "", reason)


def _variable(name: str, reason: str) -> ForeignKey:
    return ForeignKey(name, name, reason)


_NO_REDIS = "there is no Redis here"
_NO_STREAM = "there is no gRPC stream here; clients use HTTP"
_NO_RING = "`raft.selfId` and `raft.peers` name the nodes"
_NOT_READ = "codeQ does not read it either"

_ADOPTED = (
    _key("persistenceProvider", ""),
    _in_file("sharding", ""),
    _key("cluster.enabled", ""),
    _key("raft.enabled", ""),
    _key("identityServiceUrl", ""),
    _key("localArtifactsDir", ""),
    _key("tracingEnabled", ""),
    _key("tracingServiceName", ""),
    _key("tracingSampleRatio", ""),
    _key("tracingOtlpEndpoint", ""),
    _key("tracingOtlpInsecure", ""),
)

_IGNORED = (
    _key("redisAddr", _NO_REDIS),
    _key("redisPassword", _NO_REDIS),
    _variable("KVROCKS_PASSWORD", _NO_REDIS),
    _in_file("persistenceConfig.addr", _NO_REDIS),
    _in_file("persistenceConfig.password", _NO_REDIS),
    _in_file("persistenceConfig.fsyncOnCommit", "`durability` decides"),
    _key("env", "no mode relaxes a check"),
    _key("timezone", "every time is UTC"),
    _key("logFormat", "logs are JSON"),
    _key("requeueInspectLimit", "expired leases are found by time, not by inspecting a queue"),
    _in_file("cleanupIntervalSeconds", "a task is deleted when its retention ends"),
    _key("subscriptionCleanupIntervalSeconds", "a subscription ends when its time is over"),
    _key("workerStreamAddr", _NO_STREAM),
    _key("producerStreamAddr", _NO_STREAM),
    _key("identityServiceApiKey", "an issuer's published keys are fetched without one"),
    _in_file("auth.jwt", f"{_NOT_READ}; `workerJwksUrl` and `identityJwksUrl` name the keys"),
    _in_file("webhookHandlers", f"{_NOT_READ}; a task names its webhook, a worker subscribes"),
    _variable("OTEL_EXPORTER_OTLP_INSECURE", "the scheme of `tracing.otlpEndpoint` decides on TLS"),
    _key("raft.bootstrap", "a new cluster begins when all nodes of `raft.peers` are there"),
    _key("raft.muxEnabled", "the shards always share one link"),
    _key("raft.leaderLeaseMS", "no read relies on a lease; `raft.fallbackMS` ends a leadership"),
    _key("raft.commitMS", "followers hear of a commit at once"),
    _key("raft.applyTimeoutSeconds", "`limits.requestTimeoutMs` bounds every request"),
    _key("raft.topicCatalogProtocol", "topics are always replicated"),
    _key("cluster.selfId", _NO_RING),
    _key("cluster.grpcAddr", _NO_RING),
    _key("cluster.nodes", _NO_RING),
    _variable("GIN_MODE", "there is no Gin here"),
    _variable("CODEQ_PPROF", "there is no Go profiler here"),
    _variable("CODEQ_PPROF_ADDR", "there is no Go profiler here"),
)

# codeQ's keys by name.
FOREIGN: dict[str, ForeignKey] = {each.name: each for each in (*_ADOPTED, *_IGNORED)}
