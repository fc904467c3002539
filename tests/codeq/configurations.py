"""Configurations: files and environments in codeQ's keys and forms, written for these tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

_HERE = Path(__file__).parent

EMBEDDED = _HERE / "embedded.yaml"
FULL = _HERE / "full.yaml"
CHART = _HERE / "chart.yaml"

# Settings that codeQ does not have, and a cluster here needs.
CLUSTER_SECRET: Mapping[str, str] = {"CLUSTER_SECRET": "a-secret-of-the-cluster"}


# Logged by a node at its start with the environment of a codeQ Raft cluster.
RAFT_NAMED = frozenset(
    {
        "env",
        "GIN_MODE",
        "logFormat",
        "requeueInspectLimit",
        "localArtifactsDir",
        "workerAudience",
        "raft.bootstrap",
        "raft.muxEnabled",
        "raft.topicCatalogProtocol",
    }
)


def raft_environments() -> dict[str, dict[str, str]]:
    """Return the environment of each node of a Raft cluster of codeQ, by the node's id."""
    services = yaml.safe_load((_HERE / "raft-compose.yaml").read_text())["services"]
    return {name: service["environment"] for name, service in services.items()}


# Every key that codeQ's configuration has, and its variable where it reads one.
KEYS: Mapping[str, str] = {
    "port": "PORT",
    "redisAddr": "REDIS_ADDR",
    "redisPassword": "REDIS_PASSWORD",
    "persistenceProvider": "PERSISTENCE_PROVIDER",
    "persistenceConfig.path": "",
    "persistenceConfig.fsyncOnCommit": "",
    "persistenceConfig.numShards": "",
    "persistenceConfig.addr": "",
    "persistenceConfig.password": "",
    "tracingEnabled": "TRACING_ENABLED",
    "tracingServiceName": "TRACING_SERVICE_NAME",
    "tracingOtlpEndpoint": "TRACING_OTLP_ENDPOINT",
    "tracingOtlpInsecure": "TRACING_OTLP_INSECURE",
    "tracingSampleRatio": "TRACING_SAMPLE_RATIO",
    "identityServiceUrl": "IDENTITY_SERVICE_URL",
    "identityServiceApiKey": "IDENTITY_SERVICE_API_KEY",
    "identityJwksUrl": "IDENTITY_JWKS_URL",
    "identityIssuer": "IDENTITY_ISSUER",
    "identityAudience": "IDENTITY_AUDIENCE",
    "producerAuthProvider": "PRODUCER_AUTH_PROVIDER",
    "producerAuthConfig": "PRODUCER_AUTH_CONFIG",
    "timezone": "TIMEZONE",
    "logLevel": "LOG_LEVEL",
    "logFormat": "LOG_FORMAT",
    "env": "ENV",
    "defaultLeaseSeconds": "DEFAULT_LEASE_SECONDS",
    "requeueInspectLimit": "REQUEUE_INSPECT_LIMIT",
    "localArtifactsDir": "LOCAL_ARTIFACTS_DIR",
    "maxAttemptsDefault": "MAX_ATTEMPTS_DEFAULT",
    "backoffPolicy": "BACKOFF_POLICY",
    "backoffBaseSeconds": "BACKOFF_BASE_SECONDS",
    "backoffMaxSeconds": "BACKOFF_MAX_SECONDS",
    "workerJwksUrl": "WORKER_JWKS_URL",
    "workerAudience": "WORKER_AUDIENCE",
    "workerIssuer": "WORKER_ISSUER",
    "workerAuthProvider": "WORKER_AUTH_PROVIDER",
    "workerAuthConfig": "WORKER_AUTH_CONFIG",
    "allowedClockSkewSeconds": "ALLOWED_CLOCK_SKEW_SECONDS",
    "allowProducerAsWorker": "ALLOW_PRODUCER_AS_WORKER",
    "webhookHmacSecret": "WEBHOOK_HMAC_SECRET",
    "subscriptionMinIntervalSeconds": "SUBSCRIPTION_MIN_INTERVAL_SECONDS",
    "subscriptionCleanupIntervalSeconds": "SUBSCRIPTION_CLEANUP_INTERVAL_SECONDS",
    "resultWebhookMaxAttempts": "RESULT_WEBHOOK_MAX_ATTEMPTS",
    "resultWebhookBaseBackoffSeconds": "RESULT_WEBHOOK_BASE_BACKOFF_SECONDS",
    "resultWebhookMaxBackoffSeconds": "RESULT_WEBHOOK_MAX_BACKOFF_SECONDS",
    "rateLimit.producer.requestsPerMinute": "",
    "rateLimit.producer.burstSize": "",
    "rateLimit.worker.requestsPerMinute": "",
    "rateLimit.worker.burstSize": "",
    "rateLimit.webhook.requestsPerMinute": "",
    "rateLimit.webhook.burstSize": "",
    "rateLimit.admin.requestsPerMinute": "",
    "rateLimit.admin.burstSize": "",
    "sharding": "",
    "cluster.enabled": "CLUSTER_ENABLED",
    "cluster.selfId": "CLUSTER_SELF_ID",
    "cluster.grpcAddr": "CLUSTER_GRPC_ADDR",
    "cluster.nodes": "CLUSTER_NODES",
    "raft.enabled": "RAFT_ENABLED",
    "raft.selfId": "RAFT_SELF_ID",
    "raft.bindAddr": "RAFT_BIND_ADDR",
    "raft.bootstrap": "RAFT_BOOTSTRAP",
    "raft.peers": "RAFT_PEERS",
    "raft.muxEnabled": "RAFT_MUX_ENABLED",
    "raft.peerHTTPAddrs": "RAFT_PEER_HTTP_ADDRS",
    "raft.heartbeatMS": "RAFT_HEARTBEAT_MS",
    "raft.electionMS": "RAFT_ELECTION_MS",
    "raft.leaderLeaseMS": "RAFT_LEADER_LEASE_MS",
    "raft.commitMS": "RAFT_COMMIT_MS",
    "raft.applyTimeoutSeconds": "RAFT_APPLY_TIMEOUT_SECONDS",
    "raft.topicCatalogProtocol": "RAFT_TOPIC_CATALOG_PROTOCOL",
    "workerStreamAddr": "WORKER_STREAM_ADDR",
    "producerStreamAddr": "PRODUCER_STREAM_ADDR",
    # Only in its example files.
    "retentionSeconds": "",
    "cleanupIntervalSeconds": "",
    "auth.jwt": "",
    "webhookHandlers": "",
}
