"""Keys of what is outside: artifacts, backups, webhooks and the collector of spans."""

from __future__ import annotations

from codeq_cluster.config.key import SettingKey, key
from codeq_cluster.config.kinds import (
    FLAG,
    HEADERS,
    HOST,
    KEY_PREFIX,
    PATH,
    SECRET,
    TEXT,
    URL,
    member,
    number,
    whole,
)
from codeq_cluster.settings import ArtifactProvider, OtlpProtocol, Unsigned


def _bucket(section: str, meaning: str) -> tuple[SettingKey, ...]:
    """Make the keys of a bucket that a section keeps its files in."""
    at = f"{section}.s3"
    return (
        key(f"{at}.bucket", HOST, meaning),
        key(f"{at}.endpoint", URL, "base URL of the store; without it, AWS"),
        key(f"{at}.region", TEXT, "that requests are signed for"),
        key(f"{at}.prefix", KEY_PREFIX, "of every key in the bucket"),
        key(
            f"{at}.accessKeyId",
            TEXT,
            "without it, the credentials that AWS's own tools would find",
            secret=True,
        ),
        key(f"{at}.secretAccessKey", TEXT, f"goes with `{at}.accessKeyId`", secret=True),
        key(f"{at}.allowHttp", FLAG, "the endpoint may be one without TLS"),
        key(
            f"{at}.virtualHosted",
            FLAG,
            "the bucket is in the endpoint's host name, not in the path",
        ),
    )


ARTIFACTS = (
    key(
        "artifacts.provider",
        member(ArtifactProvider),
        "where artifacts are kept: `none` refuses them, `local` a directory, `s3` a bucket",
    ),
    key(
        "artifacts.publicUrl",
        URL,
        "what the URLs of stored artifacts begin with; without it they are paths",
    ),
    key("artifacts.directory", PATH, "of the provider `local`, a must with it"),
    *_bucket("artifacts", "of the provider `s3`, a must with it; it is not made"),
    key(
        "artifacts.timeoutMs",
        whole(100, 600_000),
        "of an upload, of a deletion, and of each step of a download",
    ),
    key(
        "artifacts.uploadsMax",
        whole(1, 1000),
        "uploads under way on one node; each has up to 32 MiB in memory",
    ),
)

BACKUP = (
    key(
        "backup.directory",
        PATH,
        "where this node keeps the backups it takes; on another disk than the data",
    ),
    *_bucket("backup", "keeps them instead of a directory; it is not made"),
    key("backup.timeoutMs", whole(100, 600_000), "silence of the store that is put up with"),
    key("backup.keep", whole(1, 10_000), "complete backups that stay when a new one is verified"),
    key(
        "backup.bytesPerSecond", whole(2**16, 2**34), "of rows that are read for a backup, at most"
    ),
)

WEBHOOKS = (
    key(
        "webhookHmacSecret",
        SECRET,
        "signs what is sent to webhooks and subscriptions; without it, both are refused",
        path="webhooks.hmac_secret",
        secret=True,
    ),
    key(
        "webhookHmacPreviousSecret",
        SECRET,
        "the secret before it, signs beside it while receivers change over",
        path="webhooks.hmac_previous_secret",
        secret=True,
    ),
    key(
        "webhooks.unsigned",
        member(Unsigned),
        "without the secret: `refuse` webhooks and subscriptions, or `allow` them unsigned",
    ),
    key(
        "resultWebhookMaxAttempts",
        whole(1, 100),
        "attempts of one delivery; then it is a dead delivery",
        path="webhooks.max_attempts",
    ),
    key(
        "resultWebhookBaseBackoffSeconds",
        whole(0, 86_400),
        "wait after the first attempt; doubles with each",
        path="webhooks.base_backoff_seconds",
    ),
    key(
        "resultWebhookMaxBackoffSeconds",
        whole(0, 86_400),
        "longest such wait; at least `resultWebhookBaseBackoffSeconds`",
        path="webhooks.max_backoff_seconds",
    ),
    key(
        "resultWebhookMaxAgeSeconds",
        whole(1, 2_592_000),
        "a delivery pending for so long is a dead delivery, tried or not",
        path="webhooks.max_age_seconds",
    ),
    key(
        "webhooks.allowPrivate",
        FLAG,
        "loopback, link-local and private targets are sent to, for development",
    ),
    key(
        "webhooks.timeoutSeconds",
        number(0.1, 300),
        "from the look-up of a target's name to its answer",
    ),
    key(
        "webhooks.perHostConcurrency",
        whole(1, 10_000),
        "at once to one host and port; at most `webhooks.concurrency`",
    ),
    key("webhooks.concurrency", whole(1, 10_000), "at once from this node"),
    key(
        "subscriptionMinIntervalSeconds",
        whole(0, 86_400),
        "between two notices to a subscription that names no interval",
        path="webhooks.",
    ),
)

# The variables are those every OpenTelemetry SDK knows.
TRACING = (
    key(
        "tracing.otlpEndpoint",
        URL,
        "base URL of an OTLP collector; without it no spans are made",
        env="OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
    key(
        "tracing.otlpProtocol",
        member(OtlpProtocol),
        "what the collector speaks at that port",
        env="OTEL_EXPORTER_OTLP_PROTOCOL",
    ),
    key(
        "tracing.sampleRatio",
        number(0, 1),
        "of the traces that begin here; a caller's own decision is followed",
        env="OTEL_TRACES_SAMPLER_ARG",
    ),
    key("tracing.serviceName", TEXT, "what the spans' service is called", env="OTEL_SERVICE_NAME"),
    key(
        "tracing.headers",
        HEADERS,
        "sent with every export, for a collector that wants a key",
        env="OTEL_EXPORTER_OTLP_HEADERS",
        secret=True,
    ),
)
