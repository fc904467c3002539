"""Keys of callers: how their tokens are verified, and how much each tenant may ask for."""

from __future__ import annotations

from codeq_cluster.config.budgets import BOUND_MAX, TENANT_BUDGETS
from codeq_cluster.config.key import SettingKey, key
from codeq_cluster.config.kinds import ANYTHING, FLAG, TEXT, URL, choice, whole
from codeq_cluster.config.rates import BURST_MAX, PER_MINUTE_MAX, TENANT_RATES


def _provider(of: str) -> tuple[SettingKey, ...]:
    """Make the two keys in which the reference gives the provider of a class of routes."""
    return (
        key(
            f"{of}AuthProvider",
            choice("jwks", "static", "hs256", "multi"),
            f"kind of `{of}AuthConfig`",
            path="",
        ),
        key(
            f"{of}AuthConfig",
            ANYTHING,
            "one provider, a mapping or its JSON text",
            path="",
            secret=True,
        ),
    )


def _issuer(prefix: str, of: str) -> tuple[SettingKey, ...]:
    """Make the three keys of an issuer that publishes its keys."""
    return (
        key(f"{prefix}JwksUrl", URL, f"keys of {of} tokens", path=""),
        key(f"{prefix}Issuer", TEXT, f"issuer of {of} tokens", path=""),
        key(f"{prefix}Audience", TEXT, f"audience of {of} tokens", path=""),
    )


AUTH = (
    key(
        "auth.tenantFallback",
        choice("deny", "subject", "default"),
        "the tenant of a token that names none",
    ),
    key("allowProducerAsWorker", FLAG, "a producer token serves on worker routes", path="auth."),
    key(
        "allowedClockSkewSeconds",
        whole(0, 3600),
        "tolerated between a token's issuer and this node",
        path="auth.clock_skew_seconds",
    ),
    key(
        "auth.cachedTokensMax", whole(1, 10_000_000), "verified tokens remembered until they expire"
    ),
    key("auth.allowHttpJwks", FLAG, "published keys may come from another host over plain HTTP"),
    key(
        "auth.producer",
        ANYTHING,
        "list of providers for producer routes, see below",
        path="",
        secret=True,
    ),
    key(
        "auth.worker",
        ANYTHING,
        "list of providers for worker routes, see below",
        path="",
        secret=True,
    ),
    *_provider("producer"),
    *_provider("worker"),
    *_issuer("identity", "producer"),
    *_issuer("worker", "worker"),
)


def _rate(scope: str, what: str) -> tuple[SettingKey, ...]:
    """Make the two keys of one rate limit."""
    return (
        key(
            f"rateLimit.{scope}.requestsPerMinute",
            whole(0, PER_MINUTE_MAX),
            f"{what}; 0 for no limit",
        ),
        key(
            f"rateLimit.{scope}.burstSize",
            whole(0, BURST_MAX),
            "how many at once after a pause; above 0 with a limit",
        ),
    )


RATES = (
    *_rate("producer", "creates of a tenant, each task of a batch"),
    *_rate("worker", "claims of a tenant, a batch as one"),
    *_rate("admin", "clean-ups of a tenant"),
    *_rate("webhook", "calls made for a tenant; those beyond it wait"),
    key(
        "rateLimit.tenants",
        TENANT_RATES,
        "tenants with limits of their own, `_` for the default tenant",
        path="",
    ),
)

_BOUND = whole(0, BOUND_MAX)

BUDGETS = (
    key(
        "budgets.readyTasks",
        _BOUND,
        "tasks of a tenant that wait, ready or delayed; 0 for no bound",
    ),
    key("budgets.inFlight", _BOUND, "tasks of a tenant in progress; 0 for no bound"),
    key("budgets.storedBytes", _BOUND, "payloads and results kept for a tenant; 0 for no bound"),
    key(
        "budgets.tenants",
        TENANT_BUDGETS,
        "tenants with bounds of their own, `_` for the default tenant",
        path="",
    ),
)
