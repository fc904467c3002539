"""Loading: sources in their order, and one clear line for every error."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from codeq_cluster.config import Loaded, load, without_settings
from codeq_cluster.config.reference import FOREIGN
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import (
    KEYS,
    BackoffPolicy,
    Durability,
    LifecycleSettings,
    LimitSettings,
    LinkSettings,
    PeerAddress,
    RaftSettings,
    RateLimitSettings,
    RateSettings,
    StoreSettings,
    TenantBudget,
    TenantRateLimit,
    TracingSettings,
    WebhookSettings,
)

_SECRET = "0123456789abcdef"
_LEAST: Mapping[str, str] = {
    "PERSISTENCE_PATH": "data",
    "AUTH_PRODUCER": '[{"kind":"static","tokens":[{"token":"t"}]}]',
    "ALLOW_PRODUCER_AS_WORKER": "true",
}


def _load(
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    flags: Mapping[str, str] | None = None,
) -> Loaded:
    return load(file=file, environment={**_LEAST, **(environment or {})}, flags=flags)


def _file(directory: Path, text: str, name: str = "codeq.yaml") -> Path:
    file = directory / name
    file.write_text(text)
    return file


def _refusal(
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    flags: Mapping[str, str] | None = None,
) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        _load(environment, file, flags)
    text = str(caught.value)
    assert "\n" not in text
    assert re.search(r"must be|unknown key|give (one|it once|exactly)|set one", text)
    return text


def test_the_defaults_are_those_of_the_settings_classes() -> None:
    """A node with only the required settings runs with every default."""
    settings = _load().settings

    assert RaftSettings() == settings.raft
    assert LinkSettings() == settings.link
    assert StoreSettings() == settings.store
    assert LimitSettings() == settings.limits
    assert LifecycleSettings() == settings.lifecycle
    assert RateLimitSettings() == settings.rate_limit
    assert WebhookSettings() == settings.webhooks
    assert (8080, 4, "info") == (settings.port, settings.shards, settings.log_level)


def test_every_setting_has_a_key_and_every_key_a_setting() -> None:
    """Every setting can be set, and every key has an effect."""
    made_of_several_keys = {"link_host", "link_port", "peers", "auth.producer", "auth.worker"}

    paths = [key.path for key in KEYS if key.path]

    assert set(paths) == set(_fields(_load().settings)) - made_of_several_keys
    assert len(set(paths)) == len(paths)


def _fields(settings: object, path: str = "") -> Iterator[str]:
    """Yield the path of every field, those of sections included."""
    assert dataclasses.is_dataclass(settings)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}"


def test_a_default_is_a_value_that_its_key_allows() -> None:
    """A default is never parsed, so a node would start with one that nobody could set."""
    for key in KEYS:
        if key.default not in (None, "", ()):
            assert key.default == key.kind.parse(str(key.default)), key.name


def test_names_of_keys_and_variables_are_unique() -> None:
    """One name means one thing."""
    assert len(KEYS) == len({key.name for key in KEYS})
    assert len(KEYS) == len({key.env for key in KEYS})
    assert not {key.name for key in KEYS} & FOREIGN.keys()
    assert not {key.env for key in KEYS} & {each.env for each in FOREIGN.values()}


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    """Sources override each other key by key."""
    file = _file(tmp_path, "port: 1001\nlogLevel: debug\ndurability: os\nretentionSeconds: 5\n")

    loaded = _load({"PORT": "1002", "LOG_LEVEL": "error"}, file, {"port": "1003"})

    settings = loaded.settings
    assert 1003 == settings.port
    assert "error" == settings.log_level
    assert settings.raft.durability is Durability.OS
    assert 5 == settings.lifecycle.retention_seconds
    assert LifecycleSettings().dlq_retention_seconds == settings.lifecycle.dlq_retention_seconds
    sources = {shown.name: shown.source for shown in loaded.effective}
    assert "flag" == sources["port"]
    assert "environment LOG_LEVEL" == sources["logLevel"]
    assert f"file {file}" == sources["durability"]
    assert "default" == sources["dlqRetentionSeconds"]


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    """The same settings can be written in either language."""
    yaml = _file(tmp_path, "port: 1001\nraft:\n  selfId: a\n  peers: {a: 'h:1', b: 'h:2'}\n")
    toml = _file(
        tmp_path,
        'port = 1001\n[raft]\nselfId = "a"\npeers = { a = "h:1", b = "h:2" }\n',
        "codeq.toml",
    )
    environment = {"CLUSTER_SECRET": _SECRET}

    assert _load(environment, toml).settings == _load(environment, yaml).settings


def test_a_file_of_the_reference_loads(tmp_path: Path) -> None:
    """Its names and forms keep their meaning; keys without a meaning here get a remark."""
    file = _file(
        tmp_path,
        """
port: 9000
env: prod
logLevel: warn
timezone: America/Sao_Paulo
redisAddr: localhost:6379
defaultLeaseSeconds: 60
requeueInspectLimit: 200
cleanupIntervalSeconds: 3600
maxAttemptsDefault: 3
backoffPolicy: exponential
backoffBaseSeconds: 1
backoffMaxSeconds: 10
localArtifactsDir: /srv/artifacts
persistenceProvider: pebble
persistenceConfig: '{"path": "./codeq-pebble", "numShards": 8, "fsyncOnCommit": false}'
identityServiceUrl: https://id.example
identityAudience: codeq
workerAuthProvider: jwks
workerAuthConfig:
  jwksUrl: https://id.example/jwks.json
  issuer: https://id.example
  audience: codeq-worker
  clockSkew: 30000000000
  httpTimeout: 5000000000
workerAudience: codeq-worker
subscriptionMinIntervalSeconds: 2
subscriptionCleanupIntervalSeconds: 60
workerStreamAddr: ":9091"
producerStreamAddr: ":9092"
tracingEnabled: false
tracingServiceName: codeq
tracingOtlpEndpoint: localhost:4317
tracingOtlpInsecure: true
tracingSampleRatio: 0.5
raft:
  enabled: true
  selfId: n2
  bindAddr: ":7000"
  bootstrap: false
  peers: {n1: "host-1:7000", n2: "host-2:7000"}
  peerHTTPAddrs: {n1: "http://host-1:9000", n2: "http://host-2:9000/"}
  heartbeatMS: 50
  electionMS: 500
  leaderLeaseMS: 250
  commitMS: 50
  applyTimeoutSeconds: 10
  topicCatalogProtocol: v1
clusterSecret: a-secret-of-the-cluster
""",
    )

    loaded = load(file=file)

    settings = loaded.settings
    assert "n2" == settings.node_id
    assert ("", 7000) == (settings.link_host, settings.link_port)
    assert (
        PeerAddress(id="n1", link="host-1:7000", http="http://host-1:9000"),
        PeerAddress(id="n2", link="host-2:7000", http="http://host-2:9000"),
    ) == settings.peers
    assert (Path("codeq-pebble"), 8) == (settings.data_dir, settings.shards)
    assert "warning" == settings.log_level
    assert (50, 500) == (settings.raft.heartbeat_ms, settings.raft.election_ms)
    assert settings.lifecycle.backoff_policy is BackoffPolicy.EXPONENTIAL
    assert 3 == settings.lifecycle.max_attempts_default
    assert Path("/srv/artifacts") == settings.artifacts.directory
    assert 2 == settings.webhooks.subscription_min_interval_seconds
    assert TracingSettings(service_name="codeq", sample_ratio=0.5) == settings.tracing
    assert "https://id.example" == settings.auth.producer[0].issuer
    assert "https://id.example/jwks.json" == settings.auth.worker[0].jwks_url
    assert 30.0 == settings.auth.worker[0].clock_skew_s
    assert [
        *("workerAudience", "tracingOtlpEndpoint", "tracingOtlpInsecure", "redisAddr"),
        *("persistenceConfig.fsyncOnCommit", "env", "timezone", "requeueInspectLimit"),
        *("cleanupIntervalSeconds", "subscriptionCleanupIntervalSeconds"),
        *("workerStreamAddr", "producerStreamAddr"),
        *("raft.bootstrap", "raft.leaderLeaseMS", "raft.commitMS", "raft.applyTimeoutSeconds"),
        "raft.topicCatalogProtocol",
    ] == [remark.name for remark in loaded.remarks if remark.says.endswith("; ignored")]


def test_peers_come_in_the_same_order_on_every_node() -> None:
    """The order in the text does not matter."""
    environment = {"RAFT_SELF_ID": "a", "CLUSTER_SECRET": _SECRET}

    one = _load({**environment, "RAFT_PEERS": "a=h:1,b=h:2,c=h:3"}).settings
    other = _load({**environment, "RAFT_PEERS": "c=h:3, a=h:1 ,b=h:2"}).settings

    assert other.peers == one.peers
    assert ["a", "b", "c"] == [peer.id for peer in one.peers]


def test_a_node_without_peers_is_a_cluster_of_one() -> None:
    """Such a node needs no secret, and its link gets a random one."""
    one, other = _load().settings, _load().settings

    assert [one.node_id] == [peer.id for peer in one.peers]
    assert len(one.cluster_secret) >= 32
    assert one.cluster_secret != other.cluster_secret


def test_a_node_that_is_to_meet_others_begins_no_cluster_of_its_own() -> None:
    """A secret implies peers, so they must be named, or declared to be none."""
    assert "raft.peers" in _refusal({"CLUSTER_SECRET": _SECRET})
    assert "raft.peers" in _refusal({"RAFT_SELF_ID": "n4", "CLUSTER_SECRET": _SECRET})


def test_an_ipv6_peer_is_in_brackets() -> None:
    """Its URL keeps the brackets that its host loses."""
    settings = _load(
        {"RAFT_PEERS": "a=[::1]:7000", "RAFT_SELF_ID": "a", "CLUSTER_SECRET": _SECRET}
    ).settings

    assert ("::1", 7000) == (settings.link_host, settings.link_port)
    assert "http://[::1]:8080" == settings.peers[0].http


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"PORT": "0"}, ("port=0", "environment PORT", "1 to 65535")),
        ({"PORT": "eighty"}, ("port=eighty", "whole number")),
        ({"PERSISTENCE_PATH": "~nobody-here/d"}, ("persistenceConfig.path=~nobody", "a path")),
        ({"CLUSTER_SECRET_FILE": "~nobody-here/s"}, ("CLUSTER_SECRET_FILE=~nobody", "readable")),
        ({"BACKOFF_POLICY": "random"}, ("backoffPolicy=random", "exp_full_jitter")),
        ({"ALLOW_PRODUCER_AS_WORKER": "maybe"}, ("allowProducerAsWorker=maybe", "true or false")),
        ({"LEASE_GRACE_SECONDS": "nan"}, ("leaseGraceSeconds=nan", "0 to 3600")),
        ({"RAFT_PEERS": "a=h"}, ("raft.peers=a=h", "host:port")),
        ({"RAFT_PEERS": "a=h:1,a=h:2"}, ("raft.peers", "ids differ")),
        (
            {"RAFT_PEERS": "a=h:1,b=h:1", "RAFT_SELF_ID": "a"},
            ("raft.peers", "a different address for each node"),
        ),
        ({"RAFT_PEERS": "a=h:1,b=h:2", "RAFT_SELF_ID": "c"}, ("raft.selfId=c", "a, b")),
        ({"RAFT_PEERS": "a=h:1,b=h:2", "RAFT_SELF_ID": "a"}, ("clusterSecret", "not set")),
        ({"RAFT_PEER_HTTP_ADDRS": "a=h:80"}, ("raft.peerHTTPAddrs", "http or https URL")),
        ({"RAFT_ELECTION_MS": "250"}, ("raft.electionMS=250", "300")),
        ({"RAFT_ENTRY_BYTES_MAX": "5000000"}, ("raft.entryBytesMax=5000000", "4194304")),
        ({"LIMITS_MAX_BODY_BYTES": "2883585"}, ("limits.maxBodyBytes=2883585", "2883584")),
        ({"LIMITS_MAX_RESULT_BYTES": "1343489"}, ("limits.maxResultBytes=1343489", "1343488")),
        ({"RAFT_ENTRY_BYTES_MAX": "262143"}, ("raft.entryBytesMax=262143", "262144")),
        ({"BACKOFF_MAX_SECONDS": "1"}, ("backoffMaxSeconds=1", "backoffBaseSeconds")),
        (
            {"RESULT_WEBHOOK_BASE_BACKOFF_SECONDS": "61"},
            ("resultWebhookMaxBackoffSeconds=60", "resultWebhookBaseBackoffSeconds, 61"),
        ),
        ({"WEBHOOKS_CONCURRENCY": "3"}, ("webhooks.perHostConcurrency=4", "at most", "3")),
        (
            {"WEBHOOK_HMAC_PREVIOUS_SECRET": _SECRET},
            ("webhookHmacPreviousSecret=********", "webhookHmacSecret"),
        ),
        ({"LIMITS_LEASE_SECONDS_MAX": "10"}, ("defaultLeaseSeconds=300", "10")),
        ({"PORT": "18080"}, ("port=18080", "another port")),
        (
            {"RATE_LIMIT_PRODUCER_REQUESTS_PER_MINUTE": "60"},
            ("rateLimit.producer.burstSize=0", "above 0"),
        ),
        (
            {"RATE_LIMIT_WEBHOOK_BURST_SIZE": "60"},
            ("rateLimit.webhook.requestsPerMinute=0", "above 0"),
        ),
        ({"BUDGETS_TENANTS": '{"acme":{"readyTask":1}}'}, ("budgets.tenants", "readyTasks")),
        ({"BUDGETS_TENANTS": '{"acme":{"inFlight":-1}}'}, ("budgets.tenants", "inFlight")),
        ({"BUDGETS_TENANTS": '{"Acme":{}}'}, ("budgets.tenants", "tenant")),
        ({"RATE_LIMIT_TENANTS": "acme"}, ("rateLimit.tenants=acme", "JSON")),
        ({"RATE_LIMIT_TENANTS": '{"acme":{"reader":{}}}'}, ("rateLimit.tenants", "scope")),
        ({"RATE_LIMIT_TENANTS": '{"Acme":{"worker":{}}}'}, ("rateLimit.tenants", "tenant")),
        (
            {"RATE_LIMIT_TENANTS": '{"acme":{"worker":{"burstSize":1}}}'},
            ("rateLimit.tenants", "both above 0"),
        ),
        (
            {"RATE_LIMIT_TENANTS": '{"acme":{"worker":{"burst":1}}}'},
            ("rateLimit.tenants", "burstSize"),
        ),
        ({"AUTH_PRODUCER": "{"}, ("auth.producer=********", "JSON")),
        ({"AUTH_PRODUCER": "[]"}, ("auth.producer", "1 to 8")),
        ({"AUTH_PRODUCER": '[{"kind":"magic"}]'}, ("auth.producer[0].kind=magic", "hs256")),
        ({"AUTH_PRODUCER": '[{"kind":["static"]}]'}, ("auth.producer[0].kind=['static']", "hs256")),
        (
            {
                "WORKER_AUTH_PROVIDER": "multi",
                "WORKER_AUTH_CONFIG": '{"providers":[{"type":{},"config":"t"}]}',
            },
            ("workerAuthConfig.providers[0]={}", "`type`"),
        ),
        (
            {"AUTH_PRODUCER": '[{"kind":"hs256","secret":"short"}]'},
            ("auth.producer[0].secret=********", "32 bytes"),
        ),
        (
            {"AUTH_PRODUCER": '[{"kind":"jwks","jwksUrl":"ftp://x","issuer":"i","audience":"a"}]'},
            ("auth.producer[0].jwksUrl=ftp://x", "http"),
        ),
        (
            {
                "AUTH_PRODUCER": '[{"kind":"jwks","jwksUrl":"http://id.example/keys",'
                '"issuer":"i","audience":"a"}]'
            },
            ("auth.allowHttpJwks=False", "https"),
        ),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "no pair"}, ("tracing.headers=********", "name=value")),
        ({"OTEL_TRACES_SAMPLER_ARG": "2"}, ("tracing.sampleRatio=2", "0 to 1")),
        ({"ACCESS_LOG": "loud"}, ("accessLog=loud", "never, debug, info")),
        ({"PROXIES_TRUSTED": "10.0.0.1/8"}, ("proxies.trusted=10.0.0.1/8", "10.0.0.0/8")),
        ({"PROXIES_TRUSTED": "10.0.0.1,::/0"}, ("proxies.trusted=10.0.0.1,::/0", "not /0")),
        (
            {"AUTH_PRODUCER": '[{"kind":"static","tokens":[{"token":"t","tenant":"Not Ok"}]}]'},
            ("tenant=Not Ok",),
        ),
        (
            {"AUTH_PRODUCER": '[{"kind":"static","tokens":[{"token":"t","scope":[]}]}]'},
            ("auth.producer[0].tokens[0].scope", "unknown key", "scopes"),
        ),
        ({"ALLOW_PRODUCER_AS_WORKER": "no"}, ("auth.worker", "not set", "workerJwksUrl")),
        ({"WORKER_JWKS_URL": "https://id/j"}, ("workerIssuer", "not set", "workerJwksUrl")),
        ({"IDENTITY_JWKS_URL": "https://id/j"}, ("auth.producer and identityJwksUrl",)),
        ({"WORKER_AUTH_PROVIDER": "static"}, ("workerAuthConfig", "not set", "together")),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(
    environment: Mapping[str, str], named: tuple[str, ...]
) -> None:
    """One line has the key, its value and the allowed values."""
    text = _refusal(environment)

    for part in named:
        assert part in text


def test_a_data_directory_must_be_named() -> None:
    """A node must not write data to its current directory."""
    with pytest.raises(ConfigInvalid, match=r"persistenceConfig\.path=not set"):
        load(environment={name: v for name, v in _LEAST.items() if name != "PERSISTENCE_PATH"})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot: 1\n", "prot (file"),
        ("prot: 1\n", "did you mean port?"),
        ("raft: {electionMs: 1}\n", "did you mean raft.electionMS?"),
        ("raft: 5\n", "raft=5"),
        ("port: 1\nport: 2\n", "stands twice"),
        ("- port\n", "a mapping of keys to values"),
        ("port: [1\n", "but got '<stream end>' in line 2, column 1; must be valid YAML or TOML"),
        ("clusterId: 2026-13-01\n", "valid YAML or TOML"),
        ("port: 0b_\n", "valid YAML or TOML"),
        ("port: true\n", "port=True"),
        ("persistenceConfig: '{'\n", "its JSON text"),
        ("? [a]\n: b\n", "valid YAML or TOML"),
        ("5: 1\n", "unknown key"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, named: str) -> None:
    """An unknown key or invalid bytes stop the start."""
    assert named in _refusal(None, _file(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        f'clusterSecret: "{_SECRET}\n',
        f"clusterSecret: {_SECRET}: x\n",
        f"clusterSecret: *{_SECRET}\n",
        f"clusterSecret: !{_SECRET}\n",
        f"auth:\n- {{kind: static, tokens: [{{token: {_SECRET}}}]}}\n",
    ],
)
def test_a_bad_file_is_refused_without_its_secrets(tmp_path: Path, text: str) -> None:
    """The error of a start goes into logs."""
    said = _refusal(None, _file(tmp_path, text))

    assert _SECRET not in said
    assert re.search(r" in line \d|auth=a list", said)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A misspelt path does not start a node with defaults."""
    assert "No such file" in _refusal(None, tmp_path / "none.yaml")
    assert ".toml" in _refusal(None, tmp_path / "codeq.ini")


def test_an_unknown_flag_is_refused() -> None:
    """`--set` knows the keys of the file."""
    assert "did you mean logLevel?" in _refusal(None, None, {"logLevl": "info"})


def test_a_secret_can_come_from_a_file(tmp_path: Path) -> None:
    """A variable, a key or a flag may name the file; its last line break is dropped."""
    path = str(_file(tmp_path, f"{_SECRET}\n", "secret"))
    alone = {"RAFT_SELF_ID": "n1", "RAFT_PEERS": "n1=h:1"}
    by_key = _file(tmp_path, f"clusterSecretFile: {path}\n")

    assert _SECRET == _load({**alone, "CLUSTER_SECRET_FILE": path}).settings.cluster_secret
    assert _SECRET == _load(alone, by_key).settings.cluster_secret
    assert _SECRET == _load(alone, None, {"clusterSecretFile": path}).settings.cluster_secret
    assert "one of them" in _refusal({"CLUSTER_SECRET_FILE": path, "CLUSTER_SECRET": _SECRET})
    assert "readable file" in _refusal({"CLUSTER_SECRET_FILE": str(tmp_path / "none")})


def test_no_secret_is_ever_shown() -> None:
    """Neither the effective configuration, nor a repr, nor an error prints one."""
    token = "very-secret-token"
    provider = [{"kind": "static", "tokens": [{"token": token}]}]
    signing, previous = "signs-what-is-sent", "signed-what-was-sent"
    loaded = _load(
        {
            "RAFT_PEERS": "n1=h:1",
            "RAFT_SELF_ID": "n1",
            "CLUSTER_SECRET": _SECRET,
            "AUTH_PRODUCER": json.dumps(provider),
            "WEBHOOK_HMAC_SECRET": signing,
            "WEBHOOK_HMAC_PREVIOUS_SECRET": previous,
        }
    )

    seen = f"{loaded.effective!r} {loaded.settings!r} {_refusal({'CLUSTER_SECRET': 'tiny-secret'})}"

    assert _SECRET not in seen
    assert token not in seen
    assert signing not in seen
    assert previous not in seen
    assert (signing, previous) == (
        loaded.settings.webhooks.hmac_secret,
        loaded.settings.webhooks.hmac_previous_secret,
    )
    assert "tiny-secret" not in seen


@pytest.mark.parametrize(
    "name",
    [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "ARTIFACTS_S3_ENDPOINT",
        "ARTIFACTS_PUBLIC_URL",
        "IDENTITY_JWKS_URL",
    ],
)
def test_a_url_holds_no_password_and_its_refusal_does_not_show_it(name: str) -> None:
    """URLs are printed and logged; a password in one is refused, or has a key of its own."""
    refused = _refusal({name: "https://some:turnip@store.example/path"})

    assert "without user and password" in refused
    assert "turnip" not in refused
    assert "store.example" in refused


def test_providers_of_the_reference_are_understood() -> None:
    """Its static and multi forms, from JSON in a variable, give the same tokens."""
    static = {
        "token": " t1 ",
        "subject": "w",
        "scopes": ["codeq:claim"],
        "eventTypes": ["*"],
        "raw": {"tenantId": "acme", "role": "admin"},
    }
    multi = {
        "providers": [{"type": "static", "config": static}, {"type": "static", "config": "t2"}]
    }

    auth = _load(
        {"WORKER_AUTH_PROVIDER": "multi", "WORKER_AUTH_CONFIG": json.dumps(multi)}
    ).settings.auth

    first, second = (provider.tokens[0] for provider in auth.worker)
    assert ("t1", "w", "acme") == (first.token, first.subject, first.tenant)
    assert ("codeq:claim", "codeq:admin") == first.scopes
    assert ("*",) == first.event_types
    assert ("t2", None, ()) == (second.token, second.tenant, second.scopes)


def test_a_file_has_budgets_by_tenant(tmp_path: Path) -> None:
    """A tenant's own budgets replace all the general ones."""
    file = _file(
        tmp_path,
        """
budgets:
  readyTasks: 100
  tenants:
    acme: {storedBytes: 5000}
    _: {inFlight: 7}
""",
    )

    budgets = _load(file=file).settings.budgets

    assert (100, 0, 0) == (budgets.ready_tasks, budgets.in_flight, budgets.stored_bytes)
    assert (
        TenantBudget(tenant="acme", stored_bytes=5000),
        TenantBudget(tenant="", in_flight=7),
    ) == budgets.tenants


def test_a_file_has_rate_limits_as_in_the_reference_and_by_tenant(tmp_path: Path) -> None:
    """A scope has two numbers; a tenant's own replace the general ones."""
    file = _file(
        tmp_path,
        """
rateLimit:
  producer: {requestsPerMinute: 600, burstSize: 50}
  worker: {requestsPerMinute: 0, burstSize: 0}
  tenants:
    acme:
      producer: {requestsPerMinute: 6000, burstSize: 500}
      worker: {}
    _:
      admin: {requestsPerMinute: 1, burstSize: 1}
""",
    )

    rates = _load(file=file).settings.rate_limit

    assert RateSettings(requests_per_minute=600, burst_size=50) == rates.producer
    assert RateSettings() == rates.worker
    assert (
        TenantRateLimit(tenant="acme", scope="producer", requests_per_minute=6000, burst_size=500),
        TenantRateLimit(tenant="acme", scope="worker", requests_per_minute=0, burst_size=0),
        TenantRateLimit(tenant="", scope="admin", requests_per_minute=1, burst_size=1),
    ) == rates.tenants


def test_the_store_can_be_given_as_one_variable() -> None:
    """The reference's PERSISTENCE_CONFIG is the section as JSON; a key's own variable beats it."""
    section = '{"path": "/one", "numShards": 8, "fsyncOnCommit": true}'

    settings = _load({"PERSISTENCE_CONFIG": section, "PERSISTENCE_PATH": "/two"}).settings

    assert (Path("/two"), 8) == (settings.data_dir, settings.shards)
    assert "unknown key" in _refusal({"PERSISTENCE_CONFIG": '{"shards": 8}'})
    assert "its JSON text" in _refusal({"PERSISTENCE_CONFIG": "/data"})


def test_an_empty_variable_counts_as_not_set() -> None:
    """Compose files pass on variables without a value."""
    assert 8080 == _load({"PORT": "", "LOG_LEVEL": ""}).settings.port


def test_settings_of_this_process_do_not_reach_a_child() -> None:
    """Variables that configure a node are removed from an environment, the rest stays."""
    left = without_settings({"PORT": "1", "CLUSTER_SECRET_FILE": "x", "PATH": "/bin"})

    assert {"PATH": "/bin"} == left
