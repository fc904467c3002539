"""Rules: checks of settings that must fit each other, with the allowed values for an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from codeq_cluster.core.bounds import EFFECTS_BYTES_MAX
from codeq_cluster.settings import (
    ArtifactProvider,
    ArtifactSettings,
    BackupSettings,
    LinkSettings,
    NodeSettings,
    RateSettings,
    S3Settings,
    WebhookSettings,
)
from codeq_cluster.settings.tenants import SCOPES


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
    yield from _entries(settings)
    yield from _link(settings.link)
    yield from _tasks(settings)
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


def _entries(settings: NodeSettings) -> Iterator[Rule]:
    """Check that each size fits the next: body, entry, append message, frame."""
    raft, limits = settings.raft, settings.limits
    yield Rule(
        "raft.entryBytesMax",
        raft.entry_bytes_max < raft.append_bytes_max,
        f"less than raft.appendBytesMax, {raft.append_bytes_max}",
    )
    yield Rule(
        "raft.appendBytesMax",
        raft.append_bytes_max < settings.link.frame_bytes_max,
        f"less than link.frameBytesMax, {settings.link.frame_bytes_max}",
    )
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


def _link(link: LinkSettings) -> Iterator[Rule]:
    yield Rule(
        "link.redialMsMax",
        link.redial_ms <= link.redial_ms_max,
        f"link.redialMs, {link.redial_ms}, or more",
    )
    yield Rule(
        "link.silenceMsMax",
        link.ping_ms < link.silence_ms_max,
        f"more than link.pingMs, {link.ping_ms}",
    )
    yield Rule(
        "link.queueBytesMax",
        link.frame_bytes_max <= link.queue_bytes_max,
        f"link.frameBytesMax, {link.frame_bytes_max}, or more",
    )


def _tasks(settings: NodeSettings) -> Iterator[Rule]:
    lifecycle, limits = settings.lifecycle, settings.limits
    yield Rule(
        "backoffMaxSeconds",
        lifecycle.backoff_base_seconds <= lifecycle.backoff_max_seconds,
        f"backoffBaseSeconds, {lifecycle.backoff_base_seconds}, or more",
    )
    yield Rule(
        "defaultLeaseSeconds",
        lifecycle.default_lease_seconds <= limits.lease_seconds_max,
        f"at most limits.leaseSecondsMax, {limits.lease_seconds_max}",
    )
    yield Rule(
        "maxAttemptsDefault",
        lifecycle.max_attempts_default <= limits.max_attempts_max,
        f"at most limits.maxAttemptsMax, {limits.max_attempts_max}",
    )


def _webhooks(webhooks: WebhookSettings) -> Iterator[Rule]:
    yield Rule(
        "resultWebhookMaxBackoffSeconds",
        webhooks.base_backoff_seconds <= webhooks.max_backoff_seconds,
        f"resultWebhookBaseBackoffSeconds, {webhooks.base_backoff_seconds}, or more",
    )
    yield Rule(
        "webhooks.perHostConcurrency",
        webhooks.per_host_concurrency <= webhooks.concurrency,
        f"at most webhooks.concurrency, {webhooks.concurrency}",
    )
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
