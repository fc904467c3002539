"""Keys of codeQ: those with a meaning here are used, the others named with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from codeq_cluster.config import Loaded, load, without_settings
from codeq_cluster.config.reference import FOREIGN
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import (
    KEYS,
    ArtifactProvider,
    NodeSettings,
    OtlpProtocol,
    PeerAddress,
    RaftSettings,
    TracingSettings,
)
from tests.codeq import configurations

_TOKENS: Mapping[str, str] = {
    "PRODUCER_AUTH_PROVIDER": "static",
    "PRODUCER_AUTH_CONFIG": '"token-of-a-producer"',
    "ALLOW_PRODUCER_AS_WORKER": "true",
}
_LEAST: Mapping[str, str] = {"PERSISTENCE_PATH": "data", **_TOKENS}


def _says(loaded: Loaded) -> dict[str, str]:
    """Return the remark on each key that is not used unchanged."""
    said = {remark.name: remark.says for remark in loaded.remarks}
    assert len(loaded.remarks) == len(said)
    return said


def _settings(environment: Mapping[str, str]) -> NodeSettings:
    return load(environment={**_LEAST, **environment}).settings


def _remarks(environment: Mapping[str, str]) -> dict[str, str]:
    return _says(load(environment={**_LEAST, **environment}))


def _refusal(environment: Mapping[str, str], file: Path | None = None) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        load(file=file, environment={**_LEAST, **environment})
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_file_for_the_embedded_store_loads() -> None:
    """The file has tokens, without which codeQ does not start either."""
    loaded = load(file=configurations.EMBEDDED, environment=_TOKENS)

    settings = loaded.settings
    assert (8085, "warning") == (settings.port, settings.log_level)
    assert Path("/var/lib/codeq/tasks") == settings.data_dir
    assert 120 == settings.lifecycle.default_lease_seconds
    assert 7 == settings.lifecycle.max_attempts_default
    assert 3 == settings.lifecycle.backoff_base_seconds
    assert 7200 == settings.lifecycle.retention_seconds
    assert TracingSettings(service_name="tasks", sample_ratio=0.25) == settings.tracing
    assert {
        "env",
        "timezone",
        "logFormat",
        "persistenceConfig.fsyncOnCommit",
        "cleanupIntervalSeconds",
        "auth.jwt",
        "webhookHandlers",
        "tracingOtlpEndpoint",
        "tracingOtlpInsecure",
    } == _says(loaded).keys()


def test_a_file_with_every_key_of_a_server_loads() -> None:
    """Keys with a meaning are used, the others named one by one."""
    loaded = load(file=configurations.FULL, environment=configurations.CLUSTER_SECRET)

    settings = loaded.settings
    assert (Path("/var/lib/codeq/tasks"), 2) == (settings.data_dir, settings.shards)
    assert "shop" == settings.auth.producer[0].tokens[0].tenant
    assert ("codeq:admin",) == settings.auth.producer[0].tokens[0].scopes
    assert ("RENDER", "PRINT") == settings.auth.worker[0].tokens[0].event_types
    assert 1 == settings.webhooks.subscription_min_interval_seconds
    assert (4, 300) == (settings.webhooks.max_attempts, settings.webhooks.max_backoff_seconds)
    assert 100 == settings.rate_limit.webhook.requests_per_minute
    assert settings.artifacts.provider is ArtifactProvider.LOCAL
    assert Path("/var/lib/codeq/artifacts") == settings.artifacts.directory
    assert "node-x" == settings.node_id
    assert "http://collector.example:4317" == settings.tracing.otlp_endpoint
    assert settings.tracing.otlp_protocol is OtlpProtocol.GRPC
    assert (100, 1000) == (settings.raft.heartbeat_ms, settings.raft.election_ms)
    assert {
        "redisAddr": "there is no Redis here; ignored",
        "redisPassword": "there is no Redis here; ignored",
        "env": "no mode relaxes a check; ignored",
        "timezone": "every time is UTC; ignored",
        "logFormat": "logs are JSON; ignored",
        "requeueInspectLimit": (
            "expired leases are found by time, not by inspecting a queue; ignored"
        ),
        "subscriptionCleanupIntervalSeconds": "a subscription ends when its time is over; ignored",
        "workerStreamAddr": "there is no gRPC stream here; clients use HTTP; ignored",
        "producerStreamAddr": "there is no gRPC stream here; clients use HTTP; ignored",
        "identityServiceUrl": "`producerAuthConfig` decides; ignored",
        "identityServiceApiKey": "an issuer's published keys are fetched without one; ignored",
        "workerJwksUrl": "`workerAuthConfig` decides; ignored",
        "workerIssuer": "`workerAuthConfig` decides; ignored",
        "localArtifactsDir": "taken as `artifacts.directory`, which every node must reach",
        "cluster.selfId": "`raft.selfId` and `raft.peers` name the nodes; ignored",
        "cluster.grpcAddr": "`raft.selfId` and `raft.peers` name the nodes; ignored",
        "cluster.nodes": "`raft.selfId` and `raft.peers` name the nodes; ignored",
        "raft.bootstrap": (
            "a new cluster begins when all nodes of `raft.peers` are there; ignored"
        ),
        "raft.muxEnabled": "the shards always share one link; ignored",
        "raft.heartbeatMS": (
            "more than a third of `raft.electionMS`, it is codeQ's silence before an election, "
            "which `raft.electionMS` is here; ignored"
        ),
        "raft.leaderLeaseMS": (
            "no read relies on a lease; `raft.fallbackMS` ends a leadership; ignored"
        ),
        "raft.commitMS": "followers hear of a commit at once; ignored",
        "raft.applyTimeoutSeconds": "`limits.requestTimeoutMs` bounds every request; ignored",
        "raft.topicCatalogProtocol": "topics are always replicated; ignored",
    } == _says(loaded)


def test_a_file_of_the_chart_loads_with_its_data_directory() -> None:
    """Its empty keys count as not set, and it trusts the identity service by its URL."""
    audience = {"PERSISTENCE_PATH": "data", "IDENTITY_AUDIENCE": "codeq"}

    loaded = load(file=configurations.CHART, environment=audience)

    (producer,) = loaded.settings.auth.producer
    assert "https://issuer.example/v1/.well-known/jwks.json" == producer.jwks_url
    assert ("https://issuer.example", "codeq") == (producer.issuer, producer.audience)
    assert loaded.settings.auth.allow_producer_as_worker
    assert "" == loaded.settings.webhooks.hmac_secret
    assert "there is no `workerJwksUrl`; ignored" == _says(loaded)["workerAudience"]
    assert "identityServiceApiKey" not in _says(loaded)


def test_the_environments_of_a_raft_cluster_load() -> None:
    """Only the cluster's secret is added, the same on every node."""
    loaded = {
        name: load(environment={**variables, **configurations.CLUSTER_SECRET})
        for name, variables in configurations.raft_environments().items()
    }

    peers = {each.settings.peers for each in loaded.values()}
    assert {
        tuple(
            PeerAddress(id=name, link=f"{name}:7000", http=f"http://{name}:8080")
            for name in ("left", "middle", "right")
        )
    } == peers
    for name, each in loaded.items():
        settings = each.settings
        assert name == settings.node_id
        assert ("", 7000) == (settings.link_host, settings.link_port)
        assert "warning" == settings.log_level
        assert Path("/var/lib/codeq/pebble") == settings.data_dir
        assert Path("/var/lib/codeq/artifacts") == settings.artifacts.directory
        assert 45 == settings.lifecycle.default_lease_seconds
        assert ("codeq:admin",) == settings.auth.producer[0].tokens[0].scopes
        assert "shop" == settings.auth.worker[0].tokens[0].tenant
        assert configurations.RAFT_NAMED == _says(each).keys()
        assert {"environment RAFT_BOOTSTRAP"} == {
            remark.source for remark in each.remarks if remark.name == "raft.bootstrap"
        }


def test_a_cluster_without_a_secret_is_asked_for_one() -> None:
    """CodeQ's own link admits every node, so its configurations have no secret."""
    refused = _refusal(configurations.raft_environments()["left"])

    assert (
        "clusterSecret=not set (default): must be at least 16 characters, the same on every "
        "node, when there are peers"
    ) == refused


def test_the_forms_of_its_raft_variables_are_understood() -> None:
    """CodeQ's heartbeat is a follower's timeout, so it is not taken for an interval."""
    environment = {
        "RAFT_ENABLED": "true",
        "RAFT_SELF_ID": "node-2",
        "RAFT_BIND_ADDR": ":7100",
        "RAFT_PEERS": "node-1=host1:7000, node-2=host2:7100,",
        "RAFT_PEER_HTTP_ADDRS": "node-1=http://host1:8081",
        "RAFT_HEARTBEAT_MS": "250",
        "RAFT_ELECTION_MS": "600",
        "RAFT_LEADER_LEASE_MS": "200",
        "RAFT_COMMIT_MS": "20",
        "RAFT_APPLY_TIMEOUT_SECONDS": "8",
        "RAFT_TOPIC_CATALOG_PROTOCOL": "v1",
        **configurations.CLUSTER_SECRET,
    }

    settings = _settings(environment)

    assert RaftSettings(heartbeat_ms=100, election_ms=600) == settings.raft
    assert (
        PeerAddress(id="node-1", link="host1:7000", http="http://host1:8081"),
        PeerAddress(id="node-2", link="host2:7100", http="http://host2:8080"),
    ) == settings.peers
    assert 200 == _settings({**environment, "RAFT_HEARTBEAT_MS": "200"}).raft.heartbeat_ms
    assert "raft.electionMS=600" in _refusal({**environment, "RAFT_HEARTBEAT_MS": "601"})


def test_a_single_node_listens_as_configured_and_is_reached_on_loopback() -> None:
    """An address without a host is no address for a client."""
    settings = _settings({"RAFT_BIND_ADDR": ":7000", "RAFT_ENABLED": "false"})

    assert ("", 7000) == (settings.link_host, settings.link_port)
    assert ["127.0.0.1:7000"] == [peer.link for peer in settings.peers]
    assert "raft.bindAddr=:0" in _refusal({"RAFT_BIND_ADDR": ":0"})
    assert "raft.bindAddr=:http" in _refusal({"RAFT_BIND_ADDR": ":http"})


@pytest.mark.parametrize("provider", ["redis", "memory", "postgres"])
def test_data_that_is_kept_elsewhere_is_refused(tmp_path: Path, provider: str) -> None:
    """One line has the remedy, and it comes before any other error."""
    file = tmp_path / "codeq.yaml"
    file.write_text(f"persistenceProvider: {provider}\npersistenceConfig: {{addr: 'redis:6379'}}\n")
    instead = (
        "must be pebble or empty, since a node keeps its data itself: write "
        "persistenceProvider: pebble and, in persistenceConfig, path: DIRECTORY"
    )

    with pytest.raises(ConfigInvalid) as in_file:
        load(file=file, environment={})
    in_environment = _refusal({"PERSISTENCE_PROVIDER": provider})

    assert f"persistenceProvider={provider} (file {file}): {instead}" == str(in_file.value)
    assert (
        f"persistenceProvider={provider} (environment PERSISTENCE_PROVIDER): {instead}"
    ) == in_environment


def test_the_store_of_a_node_may_be_named_or_not(tmp_path: Path) -> None:
    """It is the only one; keys of Redis beside it are ignored."""
    file = tmp_path / "codeq.yaml"
    file.write_text("persistenceConfig: {addr: 'redis:6379', password: turnip, path: data}\n")

    loaded = load(file=file, environment=_TOKENS)

    assert {
        "persistenceConfig.addr": "there is no Redis here; ignored",
        "persistenceConfig.password": "there is no Redis here; ignored",
    } == _says(loaded)
    assert {} == _remarks({"PERSISTENCE_PROVIDER": "Pebble"})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sharding: {enabled: true, backends: {}}\n", "sharding.enabled=True"),
        ("cluster: {enabled: true, selfId: a}\n", "cluster.enabled=True"),
        ("raft: {enabled: false, selfId: a, peers: {a: 'h:1'}}\n", "raft.enabled=False"),
        ("cluster: {enabled: perhaps}\n", "cluster.enabled=perhaps"),
        ("tracingEnabled: perhaps\n", "tracingEnabled=perhaps"),
        ("identityServiceUrl: issuer\n", "identityServiceUrl=issuer"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(
    tmp_path: Path, text: str, named: str
) -> None:
    """Nodes that each have a part, or bootstrap alone despite peers, would lose data."""
    file = tmp_path / "codeq.yaml"
    file.write_text(text)
    tokens = {"AUTH_PRODUCER": '[{"kind":"static","tokens":["t"]}]'}
    environment = tokens if "identity" not in text else {}

    with pytest.raises(ConfigInvalid, match=named):
        load(file=file, environment={"PERSISTENCE_PATH": "data", **environment})


@pytest.mark.parametrize(
    "text",
    [
        "redisAdr: redis:6379\n",
        "cleanupIntervalSecond: 1\n",
        "tracingEnable: true\n",
        "raft: {leaderLeaseMs: 1}\n",
        "raft: {electionMs: 1}\n",
        "persistenceConfig: {adr: redis}\n",
        "auth: {jtw: {}}\n",
    ],
)
def test_a_misspelt_key_stays_an_error(tmp_path: Path, text: str) -> None:
    """The key is neither this broker's nor codeQ's."""
    file = tmp_path / "codeq.yaml"
    file.write_text(text)

    assert "unknown key" in _refusal({}, file)


def test_a_key_in_two_places_is_named_once(tmp_path: Path) -> None:
    """The deciding source is named; keys that a template left empty are not."""
    file = tmp_path / "codeq.yaml"
    file.write_text("redisAddr: redis:6379\nredisPassword: ''\ntimezone:\n")

    loaded = load(file=file, environment={**_LEAST, "REDIS_ADDR": "redis:6380", "ENV": ""})

    assert [("redisAddr", "environment REDIS_ADDR")] == [
        (remark.name, remark.source) for remark in loaded.remarks
    ]


def test_variables_without_a_key_are_named_as_they_are() -> None:
    """These are variables of codeQ's libraries."""
    variables = ("KVROCKS_PASSWORD", "GIN_MODE", "CODEQ_PPROF", "CODEQ_PPROF_ADDR")

    assert set(variables) == _remarks(dict.fromkeys(variables, "1")).keys()


def test_a_provider_of_published_keys_has_its_own_skew_and_timeout() -> None:
    """Both are Go's durations in nanoseconds; without them, this broker's defaults apply."""
    block = {
        "jwksUrl": "https://issuer.example/keys",
        "issuer": "https://issuer.example",
        "audience": "codeq-worker",
        "clockSkew": 90_000_000_000,
        "httpTimeout": 2_500_000_000,
    }
    plain = {**block, "clockSkew": 0, "httpTimeout": 0}
    multi = {"providers": [{"type": "jwks", "config": block}, {"type": "jwks", "config": plain}]}

    auth = _settings(
        {"WORKER_AUTH_PROVIDER": "multi", "WORKER_AUTH_CONFIG": json.dumps(multi)}
    ).auth

    first, second = auth.worker
    assert (90.0, 2.5) == (first.clock_skew_s, first.fetch_timeout_s)
    assert (0.0, None) == (second.clock_skew_s, second.fetch_timeout_s)
    for part, wrong in (("clockSkew", "60s"), ("clockSkew", -1), ("httpTimeout", 61 * 10**9)):
        refused = _refusal(
            {
                "WORKER_AUTH_PROVIDER": "jwks",
                "WORKER_AUTH_CONFIG": json.dumps({**block, part: wrong}),
            }
        )
        assert f"workerAuthConfig.{part}={wrong}" in refused
        assert "nanoseconds" in refused


def test_an_issuer_of_workers_has_codeqs_audience_by_default() -> None:
    """It equals codeQ's default; the issuer has none."""
    issuer = {"WORKER_JWKS_URL": "https://issuer.example/keys", "WORKER_ISSUER": "i"}

    (provider,) = _settings(issuer).auth.worker

    assert ("i", "codeq-worker") == (provider.issuer, provider.audience)


def test_an_identity_service_gives_only_missing_values() -> None:
    """A separate URL for the keys decides, and the service is only the issuer."""
    service = {
        "PERSISTENCE_PATH": "data",
        "ALLOW_PRODUCER_AS_WORKER": "true",
        "IDENTITY_SERVICE_URL": "https://issuer.example",
        "IDENTITY_AUDIENCE": "codeq",
    }
    keys = {"IDENTITY_JWKS_URL": "https://keys.example/"}

    (other,) = load(environment={**service, **keys}).settings.auth.producer
    whole = load(environment={**service, **keys, "IDENTITY_ISSUER": "i"})
    with pytest.raises(ConfigInvalid, match=r"identityAudience=not set.*IDENTITY_SERVICE_URL"):
        load(environment={**service, "IDENTITY_AUDIENCE": ""})

    assert ("https://keys.example", "https://issuer.example") == (other.jwks_url, other.issuer)
    assert {
        "identityServiceUrl": "`identityJwksUrl` and `identityIssuer` decide; ignored"
    } == _says(whole)


def test_ours_decide_where_both_are_given() -> None:
    """A file can be migrated key by key."""
    environment = {
        "TRACING_SERVICE_NAME": "theirs",
        "OTEL_SERVICE_NAME": "ours",
        "LOCAL_ARTIFACTS_DIR": "/theirs",
        "ARTIFACTS_PROVIDER": "none",
        "TRACING_SAMPLE_RATIO": "0.5",
    }

    settings = _settings(environment)

    assert ("ours", 0.5) == (settings.tracing.service_name, settings.tracing.sample_ratio)
    assert settings.artifacts.directory is None
    assert {
        "tracingServiceName": "`tracing.serviceName` decides; ignored",
        "localArtifactsDir": "`artifacts.provider` decides; ignored",
    } == _remarks(environment)
    assert "tracing.sampleRatio=7 (environment TRACING_SAMPLE_RATIO" in _refusal(
        {"TRACING_SAMPLE_RATIO": "7"}
    )


def test_tracing_that_is_switched_off_is_off() -> None:
    """A configured collector does not switch it on; switched on, it needs one."""
    collector = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4318"}
    off, on = {"TRACING_ENABLED": "false"}, {"TRACING_ENABLED": "true"}

    assert "http://collector.example:4318" == _settings({**collector, **on}).tracing.otlp_endpoint
    assert {} == _remarks({**collector, **on})
    assert "" == _settings({**collector, **off}).tracing.otlp_endpoint
    assert {"tracing.otlpEndpoint": "`tracingEnabled` is false; ignored"} == _remarks(
        {**collector, **off}
    )
    assert {} == _remarks(off)


@pytest.mark.parametrize(
    ("theirs", "endpoint"),
    [
        ({"TRACING_OTLP_ENDPOINT": "host:4317"}, "https://host:4317"),
        ({"TRACING_OTLP_ENDPOINT": "https://host:4317/v1"}, "https://host:4317"),
        (
            {"TRACING_OTLP_ENDPOINT": "host:4317", "TRACING_OTLP_INSECURE": "true"},
            "http://host:4317",
        ),
    ],
)
def test_a_collector_of_codeq_is_spoken_to_by_grpc(theirs: dict[str, str], endpoint: str) -> None:
    """The connection uses TLS by default, and exists only if tracing is on."""
    on = {"TRACING_ENABLED": "true"}
    ours = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://ours.example:4318"}

    taken = _settings({**theirs, **on}).tracing
    assert (endpoint, OtlpProtocol.GRPC) == (taken.otlp_endpoint, taken.otlp_protocol)
    assert {} == _remarks({**theirs, **on})
    assert "" == _settings(theirs).tracing.otlp_endpoint
    assert {"no spans are made without `tracingEnabled`; ignored"} == set(_remarks(theirs).values())
    kept = _settings({**theirs, **on, **ours}).tracing
    assert (
        "http://ours.example:4318",
        OtlpProtocol.HTTP,
    ) == (kept.otlp_endpoint, kept.otlp_protocol)
    assert ("`tracing.otlpEndpoint` decides; ignored") == _remarks({**theirs, **on, **ours})[
        "tracingOtlpEndpoint"
    ]


def test_a_collector_of_codeq_that_is_no_address_is_refused_by_its_own_name() -> None:
    """The error is like that for any other invalid value."""
    refusal = _refusal({"TRACING_ENABLED": "true", "TRACING_OTLP_ENDPOINT": "user:word@host"})

    assert "TRACING_OTLP_ENDPOINT" in refusal


def test_no_secret_of_codeq_is_shown() -> None:
    """Neither a remark nor the effective configuration shows one."""
    loaded = load(file=configurations.FULL, environment=configurations.CLUSTER_SECRET)

    seen = f"{loaded!r}"

    for secret in ("a-password-of-redis", "a-key-of-the-identity", "another-password", "token-of"):
        assert secret not in seen


def test_every_key_and_variable_of_codeq_is_known() -> None:
    """None is an unknown key in a file, and none is dropped without a remark."""
    ours, theirs = {key.name: key.env for key in KEYS}, FOREIGN
    known = {**ours, **{each.name: each.env for each in theirs.values()}}

    for name, variable in configurations.KEYS.items():
        assert name in known
        assert variable in {known[name], ""}


def test_variables_of_codeq_do_not_reach_a_child() -> None:
    """A development cluster ignores the environment of a codeQ beside it."""
    variables = dict.fromkeys((name for name in configurations.KEYS.values() if name), "redis")

    assert {"PATH": "/bin"} == without_settings(
        {**variables, "GIN_MODE": "release", "PATH": "/bin"}
    )
