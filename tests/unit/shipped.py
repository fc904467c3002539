"""Shipped: shared checks of the settings that deployments make."""

from __future__ import annotations

from codeq_cluster.auth import Role
from codeq_cluster.settings import NodeSettings


def operators(settings: NodeSettings) -> list[tuple[str, str | None]]:
    """Return subject and tenant of each static token of an operator."""
    return [
        (token.subject, token.tenant)
        for provider in (*settings.auth.producer, *settings.auth.worker)
        for token in provider.tokens
        if Role.OPERATOR in token.scopes
    ]
