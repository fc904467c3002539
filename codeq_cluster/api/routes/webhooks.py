"""Webhooks: a node accepts them only if it can sign calls, or may send unsigned ones."""

from __future__ import annotations

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.settings import Signing

NOT_CONFIGURED = bad_request(
    "webhooks are not configured (set webhookHmacSecret, which signs them, or webhooks.unsigned "
    "to allow)",
    "webhooks-not-configured",
)


def takes_webhooks(call: Call) -> bool:
    """Return whether a webhook or a subscription may be registered."""
    return call.services.settings.webhooks.signing is not Signing.REFUSED


def require_webhooks(call: Call) -> None:
    """Raise a 400 that names the settings, unless a webhook may be registered."""
    if not takes_webhooks(call):
        raise NOT_CONFIGURED
