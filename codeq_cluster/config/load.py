"""Load: flag over environment over file over default, checked together, into one `NodeSettings`."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from codeq_cluster.config.keys import KEYS, Key
from codeq_cluster.config.providers import providers, referred
from codeq_cluster.config.rates import SCOPES
from codeq_cluster.config.sources import (
    Given,
    checked,
    from_environment,
    from_file,
    from_flags,
    refuse,
)
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import (
    ArtifactProvider,
    ArtifactSettings,
    AuthProviderSettings,
    AuthSettings,
    BackupSettings,
    BudgetSettings,
    LifecycleSettings,
    LimitSettings,
    LinkSettings,
    LinkTlsSettings,
    NodeSettings,
    PeerAddress,
    RaftSettings,
    RateLimitSettings,
    StoreSettings,
    TlsSettings,
    TracingSettings,
    WebhookSettings,
)
from codeq_cluster.wire.addresses import Address

_SECTIONS = {
    "raft": RaftSettings,
    "link": LinkSettings,
    "store": StoreSettings,
    "limits": LimitSettings,
    "lifecycle": LifecycleSettings,
    "auth": AuthSettings,
    "artifacts": ArtifactSettings,
    "backup": BackupSettings,
    "rate_limit": RateLimitSettings,
    "budgets": BudgetSettings,
    "tls": TlsSettings,
    "link_tls": LinkTlsSettings,
    "tracing": TracingSettings,
    "webhooks": WebhookSettings,
}
# A node must know them, its configuration need not name them.
_NAMED_DEFAULTS = {"cluster_id": "codeq", "node_id": "n1"}
_DEFAULT_LINK = "127.0.0.1:18080"

# Of a request's body, what a task's keys and framing add to it in an entry: generous.
_ENTRY_OVERHEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of the effective configuration; a secret's value is hidden."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked configuration.

    Attributes:
        ignored: Keys of the file that have no effect here.
        effective: Every key, its value and where it was given, secrets hidden.
    """

    settings: NodeSettings
    ignored: tuple[str, ...]
    effective: tuple[Shown, ...]


class _Values:
    """What was given and checked, by key name."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self.given = given
        self._values = {
            key.name: checked(key, given[key.name]) for key in KEYS if key.name in given
        }

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> object:
        return self._values.get(name)

    def text(self, name: str, default: str = "") -> str:
        return str(self._values.get(name, default))

    def table(self, name: str) -> dict[str, str]:
        table = self._values.get(name, {})
        assert isinstance(table, dict)
        return table

    def refuse(self, name: str, allowed: str) -> ConfigInvalid:
        given = self.given.get(name, Given("not set", "default"))
        return refuse(name, given, allowed)


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Loaded:
    """Merge the sources and check them.

    Args:
        file: YAML or TOML.
        environment: Variables; only those that name a key are read.
        flags: Key name to text.

    Raises:
        ConfigInvalid: Naming the key, its value and what is allowed.
    """
    in_file, ignored = from_file(file) if file else ({}, ())
    given = {**in_file, **from_environment(environment or {}), **from_flags(flags or {})}
    values = _Values(given)
    settings = _settings(values)
    _check(settings, values)
    return Loaded(settings, ignored, tuple(_shown(key, settings, values) for key in KEYS))


def _settings(values: _Values) -> NodeSettings:
    sections: dict[str, dict[str, object]] = {name: {} for name in _SECTIONS}
    top: dict[str, object] = {}
    for key in KEYS:
        section, _, field = key.path.rpartition(".")
        if key.path and key.name in values:
            (sections[section] if section else top)[field] = values.get(key.name)
    if "data_dir" not in top:
        raise values.refuse("persistenceConfig.path", "a path; it has no default")
    sections["rate_limit"]["tenants"] = values.get("rateLimit.tenants") or ()
    sections["budgets"]["tenants"] = values.get("budgets.tenants") or ()
    sections["auth"] |= {"producer": _producer(values), "worker": _worker(values)}
    top.setdefault("cluster_id", _NAMED_DEFAULTS["cluster_id"])
    top |= _addresses(values)
    peers = top["peers"]
    assert isinstance(peers, tuple)
    top["cluster_secret"] = _cluster_secret(values, nodes=len(peers))
    built = {name: make(**sections[name]) for name, make in _SECTIONS.items()}
    return NodeSettings(**top, **built)  # type: ignore[arg-type]


def _addresses(values: _Values) -> dict[str, object]:
    """Find this node's id, where it listens and every peer."""
    links = values.table("raft.peers")
    if not links and "clusterSecret" in values:
        # It is to meet others, and would begin a cluster of its own, which then can never join.
        raise values.refuse(
            "raft.peers",
            "with clusterSecret, this node and those it is to meet; it alone for a new cluster of "
            "one node",
        )
    if not links:
        node_id = values.text("raft.selfId", _NAMED_DEFAULTS["node_id"])
        links = {node_id: values.text("raft.bindAddr", _DEFAULT_LINK)}
    else:
        node_id = values.text("raft.selfId")
        if node_id not in links:
            raise values.refuse("raft.selfId", f"one of raft.peers: {', '.join(sorted(links))}")
    if len(set(links.values())) != len(links):
        raise values.refuse("raft.peers", "a different address for each node")
    bound = Address.parse(values.text("raft.bindAddr", links[node_id]))
    urls = values.table("raft.peerHTTPAddrs")
    if urls and set(urls) != set(links):
        raise values.refuse(
            "raft.peerHTTPAddrs", f"the ids of raft.peers: {', '.join(sorted(links))}"
        )
    port = values.get("port") or 8080
    scheme = "https" if "tls.certFile" in values else "http"
    return {
        "node_id": node_id,
        "link_host": bound.host,
        "link_port": bound.port,
        # Sorted: the same order on every node, whatever order each one's file has.
        "peers": tuple(
            PeerAddress(
                id=peer,
                link=links[peer],
                http=urls.get(peer) or _url(scheme, links[peer], port),
            )
            for peer in sorted(links)
        ),
    }


def _url(scheme: str, link: str, port: object) -> str:
    host = Address.parse(link).host
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _cluster_secret(values: _Values, *, nodes: int) -> str:
    if "clusterSecret" in values:
        return values.text("clusterSecret")
    if nodes > 1:
        raise values.refuse(
            "clusterSecret", "at least 16 characters, the same on every node, when there are peers"
        )
    # A cluster of one has nobody to share a secret with, and its link must still admit nobody.
    return secrets.token_hex(32)


def _producer(values: _Values) -> tuple[AuthProviderSettings, ...]:
    found = _of_class(values, "producer", "identity")
    if not found:
        raise values.refuse(
            "auth.producer", "a list of providers, producerAuthConfig or identityJwksUrl"
        )
    return found


def _worker(values: _Values) -> tuple[AuthProviderSettings, ...]:
    found = _of_class(values, "worker", "worker")
    if not found and not values.get("allowProducerAsWorker"):
        raise values.refuse(
            "auth.worker",
            "a list of providers, workerAuthConfig, workerJwksUrl, or allowProducerAsWorker: true",
        )
    return found


def _of_class(values: _Values, of: str, jwks: str) -> tuple[AuthProviderSettings, ...]:
    """Read the one form in which the providers of a class of routes are given."""
    listed, kind, config = f"auth.{of}", f"{of}AuthProvider", f"{of}AuthConfig"
    url = f"{jwks}JwksUrl"
    forms = [name for name in (listed, config, url) if name in values]
    if len(forms) > 1:
        raise ConfigInvalid(f"{' and '.join(forms)} are both given; allowed is one of them")
    if listed in values:
        return providers(listed, values.given[listed])
    if config in values or kind in values:
        if config not in values or kind not in values:
            missing = kind if config in values else config
            raise values.refuse(missing, f"{kind} and {config}, together")
        return referred(config, values.text(kind), values.given[config])
    if url in values:
        item = {
            "jwksUrl": values.get(url),
            "issuer": values.get(f"{jwks}Issuer"),
            "audience": values.get(f"{jwks}Audience"),
        }
        for part in ("Issuer", "Audience"):
            if f"{jwks}{part}" not in values:
                raise values.refuse(f"{jwks}{part}", f"a text, since {url} is set")
        return referred(url, "jwks", Given(item, values.given[url].source))
    return ()


def _check(settings: NodeSettings, values: _Values) -> None:
    """Check what only two settings together can get wrong."""
    raft, limits, lifecycle = settings.raft, settings.limits, settings.lifecycle
    webhooks = settings.webhooks
    heartbeats = 3 * raft.heartbeat_ms
    rules = (
        ("raft.electionMS", raft.election_ms >= heartbeats, f"3 heartbeats, {heartbeats}, or more"),
        ("raft.fallbackMS", raft.fallback_ms >= heartbeats, f"3 heartbeats, {heartbeats}, or more"),
        (
            "raft.entryBytesMax",
            raft.entry_bytes_max < raft.append_bytes_max,
            f"less than raft.appendBytesMax, {raft.append_bytes_max}",
        ),
        (
            "raft.appendBytesMax",
            raft.append_bytes_max < settings.link.frame_bytes_max,
            f"less than link.frameBytesMax, {settings.link.frame_bytes_max}",
        ),
        (
            "limits.maxBodyBytes",
            limits.max_body_bytes + _ENTRY_OVERHEAD_BYTES <= raft.entry_bytes_max,
            f"at most raft.entryBytesMax less {_ENTRY_OVERHEAD_BYTES}",
        ),
        (
            "limits.maxResultBytes",
            limits.max_result_bytes + _ENTRY_OVERHEAD_BYTES <= raft.entry_bytes_max,
            f"at most raft.entryBytesMax less {_ENTRY_OVERHEAD_BYTES}",
        ),
        (
            "link.redialMsMax",
            settings.link.redial_ms <= settings.link.redial_ms_max,
            f"link.redialMs, {settings.link.redial_ms}, or more",
        ),
        (
            "link.silenceMsMax",
            settings.link.ping_ms < settings.link.silence_ms_max,
            f"more than link.pingMs, {settings.link.ping_ms}",
        ),
        (
            "link.queueBytesMax",
            settings.link.frame_bytes_max <= settings.link.queue_bytes_max,
            f"link.frameBytesMax, {settings.link.frame_bytes_max}, or more",
        ),
        (
            "backoffMaxSeconds",
            lifecycle.backoff_base_seconds <= lifecycle.backoff_max_seconds,
            f"backoffBaseSeconds, {lifecycle.backoff_base_seconds}, or more",
        ),
        (
            "defaultLeaseSeconds",
            lifecycle.default_lease_seconds <= limits.lease_seconds_max,
            f"at most limits.leaseSecondsMax, {limits.lease_seconds_max}",
        ),
        (
            "maxAttemptsDefault",
            lifecycle.max_attempts_default <= limits.max_attempts_max,
            f"at most limits.maxAttemptsMax, {limits.max_attempts_max}",
        ),
        (
            "resultWebhookMaxBackoffSeconds",
            webhooks.base_backoff_seconds <= webhooks.max_backoff_seconds,
            f"resultWebhookBaseBackoffSeconds, {webhooks.base_backoff_seconds}, or more",
        ),
        (
            "webhooks.perHostConcurrency",
            webhooks.per_host_concurrency <= webhooks.concurrency,
            f"at most webhooks.concurrency, {webhooks.concurrency}",
        ),
        (
            "webhookHmacPreviousSecret",
            bool(webhooks.hmac_secret) or not webhooks.hmac_previous_secret,
            "nothing, unless webhookHmacSecret is set",
        ),
        (
            "auth.allowHttpJwks",
            settings.auth.allow_http_jwks
            or not any(p.keys_exposed for p in (*settings.auth.producer, *settings.auth.worker)),
            "true when a JWKS URL is neither https nor on this host",
        ),
        ("port", settings.port != settings.link_port, "another port than raft.bindAddr has"),
        *_artifact_rules(settings.artifacts),
        *_backup_rules(settings),
        *_rate_rules(settings),
        *_together(settings),
    )
    for name, holds, allowed in rules:
        if not holds:
            raise _conflict(name, settings, values, allowed)


def _together(settings: NodeSettings) -> Iterator[tuple[str, bool, str]]:
    """Check that the files of a certificate are given together or not at all."""
    tls, link = settings.tls, settings.link_tls
    groups = (
        {"tls.certFile": tls.cert_file, "tls.keyFile": tls.key_file},
        {
            "raft.tls.certFile": link.cert_file,
            "raft.tls.keyFile": link.key_file,
            "raft.tls.caFile": link.ca_file,
        },
    )
    for group in groups:
        given = [name for name, file in group.items() if file is not None]
        for name, file in group.items():
            allowed = f"a file, since {' and '.join(given)} has one"
            yield name, file is not None or not given, allowed


def _rate_rules(settings: NodeSettings) -> list[tuple[str, bool, str]]:
    rules = []
    # Half of a limit is none, and whoever wrote it believes that there is one.
    for scope in SCOPES:
        rate = getattr(settings.rate_limit, f"{scope}_requests_per_minute")
        burst = getattr(settings.rate_limit, f"{scope}_burst_size")
        key = f"rateLimit.{scope}"
        rules += [
            (f"{key}.burstSize", bool(burst) or not rate, f"above 0 with {key}.requestsPerMinute"),
            (f"{key}.requestsPerMinute", bool(rate) or not burst, f"above 0 with {key}.burstSize"),
        ]
    return rules


def _artifact_rules(artifacts: ArtifactSettings) -> tuple[tuple[str, bool, str], ...]:
    local = artifacts.provider is ArtifactProvider.LOCAL
    s3 = artifacts.provider is ArtifactProvider.S3
    http = artifacts.s3_endpoint.startswith("http:")
    key_id, secret = artifacts.s3_access_key_id, artifacts.s3_secret_access_key
    return (
        (
            "artifacts.directory",
            artifacts.directory is not None or not local,
            "a path, since artifacts.provider is local",
        ),
        (
            "artifacts.s3.bucket",
            bool(artifacts.s3_bucket) or not s3,
            "the name of a bucket, since artifacts.provider is s3",
        ),
        (
            "artifacts.s3.endpoint",
            not http or artifacts.s3_allow_http,
            "an https URL, unless artifacts.s3.allowHttp is true",
        ),
        (
            "artifacts.s3.secretAccessKey",
            bool(key_id) == bool(secret),
            "one together with artifacts.s3.accessKeyId",
        ),
    )


def _backup_rules(settings: NodeSettings) -> tuple[tuple[str, bool, str], ...]:
    backup, data = settings.backup, settings.data_dir.absolute()
    http = backup.s3_endpoint.startswith("http:")
    place = backup.directory.absolute() if backup.directory is not None else None
    return (
        (
            "backup.directory",
            place is None or not backup.s3_bucket,
            "nothing, since backup.s3.bucket is set",
        ),
        (
            "backup.directory",
            place is None or data not in (place, *place.parents),
            "a path outside persistenceConfig.path",
        ),
        (
            "backup.s3.endpoint",
            not http or backup.s3_allow_http,
            "an https URL, unless backup.s3.allowHttp is true",
        ),
        (
            "backup.s3.secretAccessKey",
            bool(backup.s3_access_key_id) == bool(backup.s3_secret_access_key),
            "one together with backup.s3.accessKeyId",
        ),
    )


def _conflict(name: str, settings: NodeSettings, values: _Values, allowed: str) -> ConfigInvalid:
    key = next(key for key in KEYS if key.name == name)
    shown = _shown(key, settings, values)
    return ConfigInvalid(f"{name}={shown.value} ({shown.source}): allowed is {allowed}")


def _shown(key: Key, settings: NodeSettings, values: _Values) -> Shown:
    given = values.given.get(key.name)
    source = given.source if given else "default"
    if key.secret:
        return Shown(key.name, "********" if given else "", source)
    value = _field(settings, key.path) if key.path else values.get(key.name)
    match key.name:
        case "raft.bindAddr":
            value = f"{settings.link_host}:{settings.link_port}"
        case "raft.peers":
            value = ",".join(f"{peer.id}={peer.link}" for peer in settings.peers)
        case "raft.peerHTTPAddrs":
            value = ",".join(f"{peer.id}={peer.http}" for peer in settings.peers)
    return Shown(key.name, "" if value is None else str(value), source)


def default_of(key: Key) -> str:
    """Return the value the key has when nobody gives one, or empty when there is none."""
    if not key.path or key.secret:
        return ""
    *section, field = key.path.split(".")
    described = _SECTIONS[section[0]] if section else NodeSettings
    default = next(f.default for f in dataclasses.fields(described) if f.name == field)
    if default is dataclasses.MISSING:
        return _NAMED_DEFAULTS.get(field, "")
    return "" if default is None else str(default)


def _field(settings: NodeSettings, path: str) -> object:
    value: object = settings
    for part in path.split("."):
        assert dataclasses.is_dataclass(value)
        value = getattr(value, part)
    return value
