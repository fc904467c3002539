"""Providers: reads the verifiers of tokens from the list form or the reference's names."""

from __future__ import annotations

import json

from codeq_cluster.config.block import Block
from codeq_cluster.config.sources import Given, refuse
from codeq_cluster.config.static_tokens import static_tokens
from codeq_cluster.settings import AuthProviderSettings
from codeq_cluster.settings.auth import HS_SECRET_BYTES_MIN, JWKS_ALGORITHMS
from codeq_cluster.settings.kinds import URL, ValueKind, whole

_PROVIDERS_MAX = 8
_CACHE_SECONDS = whole(1, 86400)

# The longest of each duration, in seconds. A configuration gives them as Go does, in nanoseconds.
_DURATIONS = {"clockSkew": 3600, "httpTimeout": 60}
_SECOND_NS = 10**9

_FIELDS = {
    "static": {"tokens"},
    "hs256": {"secret", "secretFile", "issuer", "audience"},
    "jwks": {"jwksUrl", "issuer", "audience", "algorithms", "cacheSeconds", *_DURATIONS},
}


def providers(name: str, given: Given) -> tuple[AuthProviderSettings, ...]:
    """Return the providers of a list, each a mapping with a `kind`.

    Raises:
        ConfigInvalid: It is no valid list.
    """
    document = _document(name, given)
    if not isinstance(document, list) or not 1 <= len(document) <= _PROVIDERS_MAX:
        raise refuse(name, given, f"a list of 1 to {_PROVIDERS_MAX} providers", secret=True)
    return tuple(
        provider(f"{name}[{position}]", Given(item, given.source))
        for position, item in enumerate(document)
    )


def referred(name: str, kind: str, given: Given) -> tuple[AuthProviderSettings, ...]:
    """Return the providers of the reference's pair: a kind and its configuration.

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
    if not isinstance(item, dict) or str(kind) not in _FIELDS:
        raise refuse(name, Given(kind, source), f"a `type` of {', '.join(_FIELDS)} and a `config`")
    return referred(f"{name}.config", str(kind), Given(item.get("config"), source))


def provider(name: str, given: Given) -> AuthProviderSettings:
    """Return one provider.

    Raises:
        ConfigInvalid: A field is missing, unknown or invalid.
    """
    item = given.raw
    if not isinstance(item, dict) or str(item.get("kind")) not in _FIELDS:
        kind = item.get("kind") if isinstance(item, dict) else "not a mapping"
        raise refuse(f"{name}.kind", Given(kind, given.source), f"one of {', '.join(_FIELDS)}")
    kind = str(item["kind"])
    block = Block(name, item, given.source)
    block.only({"kind", *_FIELDS[kind]})
    match kind:
        case "static":
            return AuthProviderSettings(kind=kind, tokens=static_tokens(block))
        case "hs256":
            return _hs256(block)
        case _:
            return _jwks(block)


def _hs256(block: Block) -> AuthProviderSettings:
    secret = block.secret("secret")
    if len(secret.encode()) < HS_SECRET_BYTES_MIN:
        raise block.refuse("secret", f"at least {HS_SECRET_BYTES_MIN} bytes", secret=True)
    return AuthProviderSettings(
        kind="hs256",
        secret=secret,
        issuer=block.text("issuer"),
        audience=block.text("audience"),
    )


def _jwks(block: Block) -> AuthProviderSettings:
    try:
        url = str(URL.parse(block.fields.get("jwksUrl")))
    except ValueError as error:
        raise block.refuse("jwksUrl", URL.allowed) from error
    algorithms = block.texts("algorithms")
    if not set(algorithms) <= set(JWKS_ALGORITHMS):
        raise block.refuse("algorithms", f"a list of {', '.join(JWKS_ALGORITHMS)}")
    return AuthProviderSettings(
        kind="jwks",
        jwks_url=url,
        issuer=block.text("issuer", must=True),
        audience=block.text("audience", must=True),
        algorithms=algorithms,
        cache_seconds=block.number("cacheSeconds", _CACHE_SECONDS) or 300,
        clock_skew_s=_duration_s(block, "clockSkew"),
        # In Go, 0 means no timeout; here every wait has one.
        fetch_timeout_s=_duration_s(block, "httpTimeout") or None,
    )


def _duration_s(block: Block, part: str) -> float | None:
    most = whole(0, _DURATIONS[part] * _SECOND_NS)
    nanoseconds = ValueKind(f"{most.allowed}, of nanoseconds", most.parse)
    found = block.number(part, nanoseconds)
    return None if found is None else found / _SECOND_NS


def _document(name: str, given: Given) -> object:
    """Return a structure: as it is, from JSON text in the environment, or a bare word as a text."""
    if not isinstance(given.raw, str) or given.raw.lstrip()[:1] not in {"{", "[", '"'}:
        return given.raw
    try:
        document: object = json.loads(given.raw)
    except ValueError as error:
        raise refuse(name, given, f"valid JSON ({error})", secret=True) from None
    return document
