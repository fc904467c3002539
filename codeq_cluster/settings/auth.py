"""Auth: the settings of access to the API."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from codeq_cluster.settings.key import SettingKey, key, made_from
from codeq_cluster.settings.kinds import ANYTHING, FLAG, TEXT, URL, choice, whole

HS_SECRET_BYTES_MIN = 32  # RFC 7518 §3.2: a key of the hash's size or larger.
# Asymmetric only: a published key is public, and with it as an HMAC secret every caller can forge
# tokens.
JWKS_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticToken:
    """A token known in advance and its claims."""

    token: str = field(repr=False)
    subject: str
    tenant: str | None = None
    scopes: tuple[str, ...] = ()
    event_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthProviderSettings:
    """One way to verify a token: kind `static`, `hs256` or `jwks`, with that kind's own fields.

    Attributes:
        clock_skew_s: In place of the general one; None for that one.
        fetch_timeout_s: Of a fetch of published keys; None for the usual one.
    """

    kind: str
    tokens: tuple[StaticToken, ...] = ()
    secret: str = field(default="", repr=False)
    jwks_url: str = ""
    issuer: str = ""
    audience: str = ""
    algorithms: tuple[str, ...] = ()
    cache_seconds: int = 300
    clock_skew_s: float | None = None
    fetch_timeout_s: float | None = None

    @property
    def keys_exposed(self) -> bool:
        """Return whether another host sends the keys without TLS: an attacker between can forge."""
        url = urlsplit(self.jwks_url)
        if url.scheme != "http" or url.hostname == "localhost":
            return False
        try:
            return not ip_address(url.hostname or "").is_loopback
        except ValueError:
            return True


def _forms(of: str, issuer: str) -> tuple[SettingKey, ...]:
    """Return the keys in which the providers of a class of routes may be given, each form alone.

    They are the list, the reference's pair of a kind and its configuration, and an issuer that
    publishes its keys.
    """
    return (
        SettingKey(
            f"auth.{of}", ANYTHING, f"list of providers for {of} routes, see below", secret=True
        ),
        SettingKey(
            f"{of}AuthProvider",
            choice("jwks", "static", "hs256", "multi"),
            f"kind of `{of}AuthConfig`",
        ),
        SettingKey(
            f"{of}AuthConfig", ANYTHING, "one provider, as a mapping or its JSON text", secret=True
        ),
        SettingKey(f"{issuer}JwksUrl", URL, f"keys of {of} tokens"),
        SettingKey(f"{issuer}Issuer", TEXT, f"issuer of {of} tokens"),
        SettingKey(f"{issuer}Audience", TEXT, f"audience of {of} tokens"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Access to the API.

    Attributes:
        producer: Providers tried in order for producer routes.
        worker: Providers tried in order for worker routes.
    """

    tenant_fallback: str = key(
        "deny",
        choice("deny", "subject", "default"),
        "tenant of a token that names none: `deny` refuses it, `subject` takes the token's "
        "subject, `default` the default tenant",
    )
    allow_producer_as_worker: bool = key(
        False, FLAG, "producer tokens are accepted on worker routes", name="allowProducerAsWorker"
    )
    clock_skew_seconds: int = key(
        60,
        whole(0, 3600),
        "tolerated difference between the clocks of a token's issuer and this node",
        name="allowedClockSkewSeconds",
    )
    cached_tokens_max: int = key(
        10_000, whole(1, 10_000_000), "verified tokens that are cached until they expire"
    )
    allow_http_jwks: bool = key(
        False, FLAG, "published keys may be fetched from other hosts over plain HTTP"
    )
    producer: tuple[AuthProviderSettings, ...] = field(
        default=(), metadata=made_from(*_forms("producer", issuer="identity"))
    )
    worker: tuple[AuthProviderSettings, ...] = field(
        default=(), metadata=made_from(*_forms("worker", issuer="worker"))
    )
