"""Reference: the keys of codeQ's configuration that have no meaning of their own here."""

from __future__ import annotations

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
