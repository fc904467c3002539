"""Settings: the settings of a node, each with its key, its bounds and its default."""

from codeq_cluster.settings.auth import AuthProviderSettings, AuthSettings, StaticToken
from codeq_cluster.settings.cluster import (
    Durability,
    LinkSettings,
    LinkTlsSettings,
    RaftSettings,
    TlsSettings,
)
from codeq_cluster.settings.files import (
    ArtifactProvider,
    ArtifactSettings,
    BackupSettings,
    S3Settings,
)
from codeq_cluster.settings.front_end import ProxySettings
from codeq_cluster.settings.key import SettingKey
from codeq_cluster.settings.node import KEYS, NodeSettings, PeerAddress
from codeq_cluster.settings.outgoing import (
    OtlpProtocol,
    Signing,
    SigningKeys,
    TracingSettings,
    Unsigned,
    WebhookSettings,
)
from codeq_cluster.settings.process import environment
from codeq_cluster.settings.store import LogSync, StoreSettings
from codeq_cluster.settings.tasks import BackoffPolicy, LifecycleSettings, LimitSettings
from codeq_cluster.settings.tenants import (
    BudgetSettings,
    RateLimitSettings,
    RateSettings,
    TenantBudget,
    TenantRateLimit,
)

__all__ = [
    "KEYS",
    "ArtifactProvider",
    "ArtifactSettings",
    "AuthProviderSettings",
    "AuthSettings",
    "BackoffPolicy",
    "BackupSettings",
    "BudgetSettings",
    "Durability",
    "LifecycleSettings",
    "LimitSettings",
    "LinkSettings",
    "LinkTlsSettings",
    "LogSync",
    "NodeSettings",
    "OtlpProtocol",
    "PeerAddress",
    "ProxySettings",
    "RaftSettings",
    "RateLimitSettings",
    "RateSettings",
    "S3Settings",
    "SettingKey",
    "Signing",
    "SigningKeys",
    "StaticToken",
    "StoreSettings",
    "TenantBudget",
    "TenantRateLimit",
    "TlsSettings",
    "TracingSettings",
    "Unsigned",
    "WebhookSettings",
    "environment",
]
