"""Features: logs at the start whether artifacts and webhooks are accepted."""

from __future__ import annotations

import logging

from codeq_cluster.settings import (
    ArtifactProvider,
    ArtifactSettings,
    NodeSettings,
    Signing,
    WebhookSettings,
)

log = logging.getLogger(__name__)


def log_features(settings: NodeSettings) -> None:
    """Log whether artifacts and webhooks are accepted, and which setting decides it."""
    _tell_artifacts(settings.artifacts)
    _tell_webhooks(settings.webhooks)


def _tell_artifacts(artifacts: ArtifactSettings) -> None:
    match artifacts.provider:
        case ArtifactProvider.NONE:
            log.info("artifacts are refused", extra={"setting": "artifacts.provider"})
        case ArtifactProvider.LOCAL:
            log.info("artifacts are kept", extra={"directory": str(artifacts.directory)})
        case ArtifactProvider.S3:
            log.info("artifacts are kept", extra={"bucket": artifacts.s3.bucket})


def _tell_webhooks(webhooks: WebhookSettings) -> None:
    match webhooks.signing:
        case Signing.SIGNED:
            log.info("webhooks are signed")
        case Signing.SHARED:
            log.warning(
                "webhooks are signed with one secret for all tenants: a tenant can pose as another "
                "one to its receivers",
                extra={"setting": "webhooks.signing"},
            )
        case Signing.UNSIGNED:
            log.warning("webhooks are sent unsigned", extra={"setting": "webhooks.unsigned"})
        case Signing.REFUSED:
            log.info(
                "webhooks and subscriptions are refused", extra={"setting": "webhookHmacSecret"}
            )
