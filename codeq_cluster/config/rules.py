"""Rules: checks of settings that must fit each other, with the allowed values for an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter, ge, gt, le, lt
from pathlib import Path
from typing import Any, NamedTuple

from codeq_cluster.core.bounds import EFFECTS_BYTES_MAX
from codeq_cluster.settings import (
    KEYS,
    ArtifactProvider,
    ArtifactSettings,
    BackupSettings,
    NodeSettings,
    RateSettings,
    S3Settings,
    WebhookSettings,
)
from codeq_cluster.settings.tenants import SCOPES

_VALUES = {key.name: attrgetter(key.path) for key in KEYS if key.path}
_ALLOWED: dict[Callable[[Any, Any], bool], str] = {
    lt: "less than {}, {}",
    le: "at most {}, {}",
    ge: "{}, {}, or more",
    gt: "more than {}, {}",
}
# How a key's value must compare with another one's.
_PAIRS = (
    # Each size fits the next: entry, append message, frame.
    ("raft.entryBytesMax", lt, "raft.appendBytesMax"),
    ("raft.appendBytesMax", lt, "link.frameBytesMax"),
    ("link.redialMsMax", ge, "link.redialMs"),
    ("link.silenceMsMax", gt, "link.pingMs"),
    ("link.queueBytesMax", ge, "link.frameBytesMax"),
    ("backoffMaxSeconds", ge, "backoffBaseSeconds"),
    ("defaultLeaseSeconds", le, "limits.leaseSecondsMax"),
    ("maxAttemptsDefault", le, "limits.maxAttemptsMax"),
    ("resultWebhookMaxBackoffSeconds", ge, "resultWebhookBaseBackoffSeconds"),
    ("webhooks.perHostConcurrency", le, "webhooks.concurrency"),
)


class Rule(NamedTuple):
    """One check of a whole configuration.

    Attributes:
        key: The key whose value is wrong if the check fails.
        holds: Whether the configuration passes.
        allowed: The values that the other keys allow for it, as the error says them.
    """

    key: str
    holds: bool
    allowed: str


def rules(settings: NodeSettings) -> Iterator[Rule]:
    """Yield every rule that a node's settings must satisfy."""
    yield Rule("port", settings.port != settings.link_port, "another port than raft.bindAddr has")
    yield from _raft(settings)
    yield from _pairs(settings)
    yield from _entries(settings)
    yield from _webhooks(settings.webhooks)
    yield from _keys_of_issuers(settings)
    yield from _artifacts(settings.artifacts)
    yield from _backup(settings.backup, settings.data_dir.absolute())
    yield from _rates(settings)
    yield from _certificates(settings)


def _raft(settings: NodeSettings) -> Iterator[Rule]:
    raft = settings.raft
    heartbeats = 3 * raft.heartbeat_ms
    allowed = f"3 heartbeats, {heartbeats}, or more"
    yield Rule("raft.electionMS", raft.election_ms >= heartbeats, allowed)
    yield Rule("raft.fallbackMS", raft.fallback_ms >= heartbeats, allowed)


def _pairs(settings: NodeSettings) -> Iterator[Rule]:
    for key, compare, other in _PAIRS:
        bound = _VALUES[other](settings)
        holds = compare(_VALUES[key](settings), bound)
        yield Rule(key, holds, _ALLOWED[compare].format(other, bound))


def _entries(settings: NodeSettings) -> Iterator[Rule]:
    """Check that a body fits an entry, with all that the broker adds to it."""
    raft, limits = settings.raft, settings.limits
    body_most = raft.entry_bytes_max - EFFECTS_BYTES_MAX
    yield Rule(
        "limits.maxBodyBytes",
        limits.max_body_bytes <= body_most,
        f"at most raft.entryBytesMax less {EFFECTS_BYTES_MAX}, {body_most}",
    )
    # The callback of a task has a copy of its result, and the task itself one of the error.
    result_most = (body_most - 3 * limits.max_error_bytes) // 2
    yield Rule(
        "limits.maxResultBytes",
        limits.max_result_bytes <= result_most,
        f"at most {result_most}: with {EFFECTS_BYTES_MAX} bytes, two results and three times "
        "limits.maxErrorBytes fit into raft.entryBytesMax",
    )


def _webhooks(webhooks: WebhookSettings) -> Iterator[Rule]:
    yield Rule(
        "webhookHmacPreviousSecret",
        bool(webhooks.hmac_secret) or not webhooks.hmac_previous_secret,
        "empty, unless webhookHmacSecret is set",
    )


def _keys_of_issuers(settings: NodeSettings) -> Iterator[Rule]:
    auth = settings.auth
    exposed = any(provider.keys_exposed for provider in (*auth.producer, *auth.worker))
    yield Rule(
        "auth.allowHttpJwks",
        auth.allow_http_jwks or not exposed,
        "true when a JWKS URL is neither https nor on this host",
    )


def _artifacts(artifacts: ArtifactSettings) -> Iterator[Rule]:
    local = artifacts.provider is ArtifactProvider.LOCAL
    s3 = artifacts.provider is ArtifactProvider.S3
    yield Rule(
        "artifacts.directory",
        artifacts.directory is not None or not local,
        "a path, since artifacts.provider is local",
    )
    yield Rule(
        "artifacts.s3.bucket",
        bool(artifacts.s3.bucket) or not s3,
        "the name of a bucket, since artifacts.provider is s3",
    )
    yield from _bucket("artifacts.s3", artifacts.s3)


def _backup(backup: BackupSettings, data: Path) -> Iterator[Rule]:
    directory = backup.directory.absolute() if backup.directory is not None else None
    yield Rule(
        "backup.directory",
        directory is None or not backup.s3.bucket,
        "empty, since backup.s3.bucket is set",
    )
    yield Rule(
        "backup.directory",
        directory is None or data not in (directory, *directory.parents),
        "a path outside persistenceConfig.path",
    )
    yield from _bucket("backup.s3", backup.s3)


def _bucket(section: str, s3: S3Settings) -> Iterator[Rule]:
    yield Rule(
        f"{section}.endpoint",
        s3.allow_http or not s3.endpoint.startswith("http:"),
        f"an https URL, unless {section}.allowHttp is true",
    )
    yield Rule(
        f"{section}.secretAccessKey",
        bool(s3.access_key_id) == bool(s3.secret_access_key),
        f"one together with {section}.accessKeyId",
    )


def _rates(settings: NodeSettings) -> Iterator[Rule]:
    # A rate without a burst, or a burst without a rate, would silently switch the limit off: refuse
    # it.
    for scope in SCOPES:
        limit: RateSettings = getattr(settings.rate_limit, scope)
        rate, burst = f"rateLimit.{scope}.requestsPerMinute", f"rateLimit.{scope}.burstSize"
        yield Rule(
            burst, bool(limit.burst_size) or not limit.requests_per_minute, f"above 0 with {rate}"
        )
        yield Rule(
            rate, bool(limit.requests_per_minute) or not limit.burst_size, f"above 0 with {burst}"
        )


def _certificates(settings: NodeSettings) -> Iterator[Rule]:
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
            yield Rule(name, file is not None or not given, allowed)
