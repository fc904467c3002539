"""Outgoing: the settings of requests that a node makes: webhooks, and spans for a collector."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from codeq_cluster.core.bounds import DELIVERY_ATTEMPTS_MAX
from codeq_cluster.settings.key import key
from codeq_cluster.settings.kinds import FLAG, HEADERS, SECRET, TEXT, URL, member, number, whole


class Unsigned(StrEnum):
    """The handling of webhooks and subscriptions without a signing secret."""

    REFUSE = "refuse"
    ALLOW = "allow"


class SigningKeys(StrEnum):
    """Whose key signs callbacks and notices: the tenant's own, or the cluster's one secret."""

    TENANT = "tenant"
    CLUSTER = "cluster"


class Signing(StrEnum):
    """A node's handling of webhooks and subscriptions; SHARED is signed with one secret for all."""

    SIGNED = "signed"
    SHARED = "shared"
    UNSIGNED = "unsigned"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Requests to targets that users name."""

    hmac_secret: str = key(
        "",
        SECRET,
        "each tenant's key is derived from it, and signs requests to its webhooks and "
        "subscriptions; without it, both are refused",
        name="webhookHmacSecret",
        secret=True,
    )
    hmac_previous_secret: str = key(
        "",
        SECRET,
        "the previous secret; requests carry both signatures while receivers change over",
        name="webhookHmacPreviousSecret",
        secret=True,
    )
    signing_keys: SigningKeys = key(
        SigningKeys.TENANT,
        member(SigningKeys),
        "`tenant`: each tenant's requests are signed with its own key; `cluster`: all with the "
        "secret itself, as codeQ does, so that a tenant can pose as another one",
        name="webhooks.signing",
    )
    unsigned: Unsigned = key(
        Unsigned.REFUSE,
        member(Unsigned),
        "without the secret: `refuse` webhooks and subscriptions, or `allow` them unsigned",
    )
    max_attempts: int = key(
        5,
        whole(1, DELIVERY_ATTEMPTS_MAX),
        "attempts at one delivery before it is a dead delivery",
        name="resultWebhookMaxAttempts",
    )
    base_backoff_seconds: int = key(
        2,
        whole(0, 86_400),
        "wait after the first attempt; doubles with each further attempt",
        name="resultWebhookBaseBackoffSeconds",
    )
    max_backoff_seconds: int = key(
        60,
        whole(0, 86_400),
        "longest wait between two attempts; at least `resultWebhookBaseBackoffSeconds`",
        name="resultWebhookMaxBackoffSeconds",
    )
    # A dead host with many deliveries waiting is tried about once a minute, so that attempts alone
    # would never end them all.
    max_age_seconds: int = key(
        86_400,
        whole(1, 2_592_000),
        "a delivery that is pending for this long is a dead delivery, tried or not",
        name="resultWebhookMaxAgeSeconds",
    )
    allow_private: bool = key(
        False,
        FLAG,
        "requests to loopback, link-local and private addresses are allowed, for development",
    )
    timeout_seconds: float = key(
        15.0,
        number(0.1, 300),
        "time for one request, from the lookup of the target's name to the answer",
    )
    # So that a slow host cannot take all.
    per_host_concurrency: int = key(
        4,
        whole(1, 10_000),
        "concurrent requests of a tenant to one host and port; at most `webhooks.concurrency`",
    )
    # Each costs a socket, and a thread while its name is resolved.
    concurrency: int = key(
        64, whole(1, 10_000), "concurrent requests of this node, a share a tenant"
    )
    subscription_min_interval_seconds: int = key(
        5,
        whole(0, 86_400),
        "shortest time between two notifications to a subscription that names no interval",
        name="subscriptionMinIntervalSeconds",
    )

    @property
    def signing(self) -> Signing:
        """Return the node's handling of webhooks and subscriptions."""
        if self.hmac_secret:
            shared = self.signing_keys is SigningKeys.CLUSTER
            return Signing.SHARED if shared else Signing.SIGNED
        return Signing.UNSIGNED if self.unsigned is Unsigned.ALLOW else Signing.REFUSED


class OtlpProtocol(StrEnum):
    """The protocol that carries spans, by the names of every OpenTelemetry SDK."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """Spans for a collector; off without an endpoint.

    The variables are those every OpenTelemetry SDK knows.
    """

    # HTTP adds `/v1/traces` to it; gRPC uses only its host and port. The scheme decides on TLS.
    otlp_endpoint: str = key(
        "",
        URL,
        "base URL of an OTLP collector; without it there is no tracing",
        env="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_protocol: OtlpProtocol = key(
        OtlpProtocol.HTTP,
        member(OtlpProtocol),
        "protocol of the collector at that endpoint",
        env="OTEL_EXPORTER_OTLP_PROTOCOL",
    )
    sample_ratio: float = key(
        1.0,
        number(0, 1),
        "share of the traces that begin here; a caller's own decision is followed",
        env="OTEL_TRACES_SAMPLER_ARG",
    )
    service_name: str = key(
        "codeq-cluster", TEXT, "service name of the spans", env="OTEL_SERVICE_NAME"
    )
    # `name=value,name=value`
    headers: str = key(
        "",
        HEADERS,
        "headers of every export, for a collector that needs a key",
        env="OTEL_EXPORTER_OTLP_HEADERS",
        secret=True,
    )
