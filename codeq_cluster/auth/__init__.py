"""Callers: tokens verified, tenants resolved, access granted."""

from codeq_cluster.auth.authenticator import Authenticator
from codeq_cluster.auth.identity import Access, AccessRefused, Identity, Role

__all__ = ["Access", "AccessRefused", "Authenticator", "Identity", "Role"]
