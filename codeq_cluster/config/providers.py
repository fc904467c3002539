"""Providers: who verifies a token, read from the list form or the reference's names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from codeq_cluster.config.kinds import URL, Kind, whole
from codeq_cluster.config.sources import Given, read_secret, refuse
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import AuthProviderSettings, StaticToken

_TENANT = re.compile(r"[a-z][a-z0-9-]{1,62}")
_TENANT_CLAIMS = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")
_PROVIDERS_MAX = 8
_TOKENS_MAX = 1000
_CACHE_SECONDS = whole(1, 86400)
_SCOPES_OF_WORKER = (
    "codeq:claim",
    "codeq:heartbeat",
    "codeq:abandon",
    "codeq:nack",
    "codeq:result",
    "codeq:subscribe",
)
SCOPES = (*_SCOPES_OF_WORKER, "codeq:admin", "codeq:operator")

# No symmetric algorithm: a JWKS key is public, and a public key as an HMAC secret forges tokens.
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)

# As codeQ writes them: Go's durations, in nanoseconds.
_DURATIONS = {"clockSkew": 3600, "httpTimeout": 60}
"""The longest of each, in seconds."""
_SECOND_NS = 10**9

_FIELDS = {
    "static": {"tokens"},
    "hs256": {"secret", "secretFile", "issuer", "audience"},
    "jwks": {"jwksUrl", "issuer", "audience", "algorithms", "cacheSeconds", *_DURATIONS},
}
_TOKEN_FIELDS = {"token", "tokenFile", "subject", "tenant", "scopes", "eventTypes", "email", "raw"}


def providers(name: str, given: Given) -> tuple[AuthProviderSettings, ...]:
    """Read a list of providers, each a mapping with a `kind`.

    Raises:
        ConfigInvalid: It is no such list.
    """
    document = _document(name, given)
    if not isinstance(document, list) or not 1 <= len(document) <= _PROVIDERS_MAX:
        raise refuse(name, given, f"a list of 1 to {_PROVIDERS_MAX} providers", secret=True)
    return tuple(
        provider(f"{name}[{position}]", Given(item, given.source))
        for position, item in enumerate(document)
    )


def referred(name: str, kind: str, given: Given) -> tuple[AuthProviderSettings, ...]:
    """Read the reference's pair of a provider's kind and its configuration.

    Raises:
        ConfigInvalid: The configuration does not fit the kind.
    """
    document = _document(name, given)
    if kind == "multi":
        items = document.get("providers") if isinstance(document, dict) else None
        if not isinstance(items, list) or not 1 <= len(items) <= _PROVIDERS_MAX:
            raise refuse(name, given, f'{{"providers": [1 to {_PROVIDERS_MAX}]}}', secret=True)
        return tuple(
            found
            for position, item in enumerate(items)
            for found in _referred_item(f"{name}.providers[{position}]", item, given.source)
        )
    if kind == "static":
        items = document if isinstance(document, list) else [document]
        return (provider(name, Given({"kind": kind, "tokens": items}, given.source)),)
    if not isinstance(document, dict):
        raise refuse(name, given, "a mapping, or its JSON text", secret=True)
    return (provider(name, Given({**document, "kind": kind}, given.source)),)


def _referred_item(name: str, item: object, source: str) -> tuple[AuthProviderSettings, ...]:
    kind = item.get("type") if isinstance(item, dict) else None
    if not isinstance(item, dict) or kind not in _FIELDS:
        raise refuse(name, Given(kind, source), f"a `type` of {', '.join(_FIELDS)} and a `config`")
    return referred(f"{name}.config", str(kind), Given(item.get("config"), source))


def provider(name: str, given: Given) -> AuthProviderSettings:
    """Read one provider.

    Raises:
        ConfigInvalid: A field is missing, unknown or not what it may be.
    """
    item = given.raw
    if not isinstance(item, dict) or item.get("kind") not in _FIELDS:
        kind = item.get("kind") if isinstance(item, dict) else "not a mapping"
        raise refuse(f"{name}.kind", Given(kind, given.source), f"one of {', '.join(_FIELDS)}")
    kind = str(item["kind"])
    _only(name, item, {"kind", *_FIELDS[kind]}, given.source)
    match kind:
        case "static":
            return AuthProviderSettings(kind=kind, tokens=_tokens(name, item, given.source))
        case "hs256":
            secret = _secret(name, item, "secret", given.source)
            # RFC 7518, 3.2: a key of at least the size of the hash.
            if len(secret.encode()) < 32:
                raise refuse(
                    f"{name}.secret", Given("", given.source), "at least 32 bytes", secret=True
                )
            return AuthProviderSettings(
                kind=kind,
                secret=secret,
                issuer=_text(name, item, "issuer", given.source, must=False),
                audience=_text(name, item, "audience", given.source, must=False),
            )
        case _:
            return _jwks(name, item, given.source)


def _jwks(name: str, item: Mapping[str, object], source: str) -> AuthProviderSettings:
    try:
        url = str(URL.parse(item.get("jwksUrl")))
    except ValueError as error:
        raise refuse(f"{name}.jwksUrl", Given(item.get("jwksUrl"), source), URL.allowed) from error
    algorithms = _texts(name, item, "algorithms", source)
    if not set(algorithms) <= set(_ALGORITHMS):
        raise refuse(
            f"{name}.algorithms",
            Given(item.get("algorithms"), source),
            f"a list of {', '.join(_ALGORITHMS)}",
        )
    return AuthProviderSettings(
        kind="jwks",
        jwks_url=url,
        issuer=_text(name, item, "issuer", source, must=True),
        audience=_text(name, item, "audience", source, must=True),
        algorithms=algorithms,
        cache_seconds=_number(name, item, "cacheSeconds", source, _CACHE_SECONDS) or 300,
        clock_skew_s=_duration_s(name, item, "clockSkew", source),
        # Go has no timeout for 0; here every wait has one.
        fetch_timeout_s=_duration_s(name, item, "httpTimeout", source) or None,
    )


def _tokens(name: str, item: Mapping[str, object], source: str) -> tuple[StaticToken, ...]:
    items = item.get("tokens")
    if not isinstance(items, list) or not 1 <= len(items) <= _TOKENS_MAX:
        raise refuse(
            f"{name}.tokens", Given("", source), f"a list of 1 to {_TOKENS_MAX} tokens", secret=True
        )
    tokens = tuple(
        _token(f"{name}.tokens[{position}]", one, source) for position, one in enumerate(items)
    )
    if len({token.token for token in tokens}) != len(tokens):
        raise refuse(f"{name}.tokens", Given("", source), "each token once", secret=True)
    return tokens


def _token(name: str, item: object, source: str) -> StaticToken:
    if isinstance(item, str):
        item = {"token": item}
    if not isinstance(item, dict):
        raise refuse(name, Given("", source), "a token, or a mapping of its fields", secret=True)
    _only(name, item, _TOKEN_FIELDS, source)
    raw = item.get("raw") or {}
    if not isinstance(raw, dict):
        raise refuse(f"{name}.raw", Given(raw, source), "a mapping of claims")
    scopes = _texts(name, item, "scopes", source)
    if str(raw.get("role", "")).upper() == "ADMIN":
        scopes = (*scopes, "codeq:admin")
    if not set(scopes) <= set(SCOPES):
        raise refuse(
            f"{name}.scopes", Given(item.get("scopes"), source), f"a list of {', '.join(SCOPES)}"
        )
    return StaticToken(
        token=_secret(name, item, "token", source).strip(),
        subject=_text(name, item, "subject", source, must=False) or "static",
        tenant=_tenant(name, item, raw, source),
        scopes=tuple(dict.fromkeys(scopes)),
        event_types=_texts(name, item, "eventTypes", source),
    )


def _tenant(
    name: str, item: Mapping[str, object], raw: Mapping[str, object], source: str
) -> str | None:
    named = {str(raw[claim]) for claim in _TENANT_CLAIMS if raw.get(claim)}
    if item.get("tenant"):
        named.add(str(item["tenant"]))
    if not named:
        return None
    if len(named) > 1 or not _TENANT.fullmatch(next(iter(named))):
        raise refuse(
            f"{name}.tenant",
            Given(", ".join(sorted(named)), source),
            "one name, a-z first, then 1 to 62 of a-z 0-9 -",
        )
    return named.pop()


def _document(name: str, given: Given) -> object:
    """Take a structure as it is or, from the environment, as JSON text; a bare word is a text."""
    if not isinstance(given.raw, str) or given.raw.lstrip()[:1] not in {"{", "[", '"'}:
        return given.raw
    try:
        document: object = json.loads(given.raw)
    except ValueError as error:
        raise refuse(name, given, f"valid JSON ({error})", secret=True) from None
    return document


def _only(name: str, item: Mapping[str, object], known: set[str], source: str) -> None:
    unknown = sorted(str(part) for part in item if part not in known)
    if unknown:
        raise ConfigInvalid(
            f"{name}.{unknown[0]} ({source}): unknown key; allowed are {', '.join(sorted(known))}"
        )


def _text(name: str, item: Mapping[str, object], part: str, source: str, *, must: bool) -> str:
    value = item.get(part)
    if value is None and not must:
        return ""
    if not isinstance(value, str) or not value.strip():
        raise refuse(f"{name}.{part}", Given(value, source), "a text that is not empty")
    return value.strip()


def _texts(name: str, item: Mapping[str, object], part: str, source: str) -> tuple[str, ...]:
    value = item.get(part)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise refuse(f"{name}.{part}", Given(value, source), "a list of texts")
    return tuple(value)


def _number(
    name: str, item: Mapping[str, object], part: str, source: str, kind: Kind
) -> int | None:
    value = item.get(part)
    if value is None:
        return None
    try:
        found = kind.parse(value)
    except ValueError as error:
        raise refuse(f"{name}.{part}", Given(value, source), kind.allowed) from error
    assert isinstance(found, int)
    return found


def _duration_s(name: str, item: Mapping[str, object], part: str, source: str) -> float | None:
    most = whole(0, _DURATIONS[part] * _SECOND_NS)
    nanoseconds = Kind(f"{most.allowed}, of nanoseconds", most.parse)
    found = _number(name, item, part, source, nanoseconds)
    return None if found is None else found / _SECOND_NS


def _secret(name: str, item: Mapping[str, object], part: str, source: str) -> str:
    direct, by_file = item.get(part), item.get(f"{part}File")
    if (direct is None) == (by_file is None):
        raise ConfigInvalid(
            f"{name}.{part} ({source}): allowed is exactly one of {part} and {part}File"
        )
    if by_file is not None:
        return read_secret(by_file, f"{name}.{part}File")
    if not isinstance(direct, str) or not direct.strip():
        raise refuse(f"{name}.{part}", Given("", source), "a text that is not empty", secret=True)
    return direct
