"""Access: the providers that verify the tokens of each class of routes."""

from __future__ import annotations

from codeq_cluster.config.providers import providers, referred
from codeq_cluster.config.sources import Given
from codeq_cluster.config.values import Values
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import AuthProviderSettings


def producer_providers(values: Values) -> tuple[AuthProviderSettings, ...]:
    """Return the providers of producer routes.

    Raises:
        ConfigInvalid: There is none, they are given in two forms, or one is wrong.
    """
    found = _providers(values, "producer", "identity")
    if not found:
        raise values.refuse(
            "auth.producer", "a list of providers, producerAuthConfig or identityJwksUrl"
        )
    return found


def worker_providers(values: Values) -> tuple[AuthProviderSettings, ...]:
    """Return the providers of worker routes; none if producers' tokens serve there.

    Raises:
        ConfigInvalid: There is none, they are given in two forms, or one is wrong.
    """
    found = _providers(values, "worker", "worker")
    if not found and not values.get("allowProducerAsWorker"):
        raise values.refuse(
            "auth.worker",
            "a list of providers, workerAuthConfig, workerJwksUrl, or allowProducerAsWorker: true",
        )
    return found


def _providers(values: Values, of: str, issuer: str) -> tuple[AuthProviderSettings, ...]:
    """Return the providers of a class of routes, given in only one form."""
    listed, kind, config = f"auth.{of}", f"{of}AuthProvider", f"{of}AuthConfig"
    url = f"{issuer}JwksUrl"
    forms = [name for name in (listed, config, url) if name in values]
    if len(forms) > 1:
        raise ConfigInvalid(f"{' and '.join(forms)} are both given; give one of them")
    if listed in values:
        return providers(listed, values.given[listed])
    if config in values or kind in values:
        if config not in values or kind not in values:
            missing = kind if config in values else config
            raise values.refuse(missing, f"set, since {kind} and {config} belong together")
        return referred(config, values.text(kind), values.given[config])
    return _published(values, issuer) if url in values else ()


def _published(values: Values, issuer: str) -> tuple[AuthProviderSettings, ...]:
    """Return the provider of an issuer that publishes its keys, from its three keys."""
    url = f"{issuer}JwksUrl"
    for part in ("Issuer", "Audience"):
        if f"{issuer}{part}" not in values:
            raise values.refuse(
                f"{issuer}{part}", f"a text, since {url} is set ({values.source(url)})"
            )
    item = {
        "jwksUrl": values.get(url),
        "issuer": values.get(f"{issuer}Issuer"),
        "audience": values.get(f"{issuer}Audience"),
    }
    return referred(url, "jwks", Given(item, values.source(url)))
