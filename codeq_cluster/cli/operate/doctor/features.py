"""Features: checks of what a node accepts beside tasks: artifacts and webhooks."""

from __future__ import annotations

from codeq_cluster.cli.operate.doctor.finding import Finding, ok, warn
from codeq_cluster.settings import ArtifactProvider, Signing


def artifacts(about: str, provider: ArtifactProvider) -> Finding:
    """Judge where the artifacts of results are kept."""
    match provider:
        case ArtifactProvider.NONE:
            return warn(
                "artifacts",
                about,
                "off, results that bring files are refused",
                "set artifacts.provider to s3, or to local for a directory that all nodes share",
            )
        case ArtifactProvider.LOCAL:
            return ok("artifacts", about, "kept in a directory, which all nodes must share")
        case ArtifactProvider.S3:
            return ok("artifacts", about, "kept in a bucket")


def webhooks(about: str, signing: Signing) -> Finding:
    """Judge whether receivers can verify the sender of a callback."""
    match signing:
        case Signing.SIGNED:
            return ok("webhooks", about, "signed, with a key for each tenant")
        case Signing.SHARED:
            return warn(
                "webhooks",
                about,
                "signed with one secret for all tenants, as webhooks.signing asks",
                "set webhooks.signing to tenant once each tenant's receivers have its key: until "
                "then a tenant can pose as another one to its receivers",
            )
        case Signing.UNSIGNED:
            return warn(
                "webhooks",
                about,
                "sent unsigned, as webhooks.unsigned allows",
                "set webhookHmacSecret, or any sender can pose as this cluster",
            )
        case Signing.REFUSED:
            return warn(
                "webhooks",
                about,
                "off, tasks with a webhook and subscriptions are refused",
                "set webhookHmacSecret, the same on every node",
            )
