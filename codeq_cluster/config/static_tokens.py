"""Static tokens: tokens known in advance, each with its claims."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.auth.identity import SCOPES, TENANT_CLAIMS, Role
from codeq_cluster.config.block import Block
from codeq_cluster.config.sources import Given, refuse
from codeq_cluster.core.bounds import TENANT
from codeq_cluster.settings import StaticToken

_TOKENS_MAX = 1000
_FIELDS = {"token", "tokenFile", "subject", "tenant", "scopes", "eventTypes", "email", "raw"}


def static_tokens(block: Block) -> tuple[StaticToken, ...]:
    """Return the tokens of a provider.

    Raises:
        ConfigInvalid: There is none, one is wrong, or one is given twice.
    """
    items = block.fields.get("tokens")
    if not isinstance(items, list) or not 1 <= len(items) <= _TOKENS_MAX:
        raise block.refuse("tokens", f"a list of 1 to {_TOKENS_MAX} tokens", secret=True)
    tokens = tuple(
        _token(f"{block.name}.tokens[{position}]", item, block.source)
        for position, item in enumerate(items)
    )
    if len({token.token for token in tokens}) != len(tokens):
        raise block.refuse("tokens", "different tokens", secret=True)
    return tokens


def _token(name: str, item: object, source: str) -> StaticToken:
    if isinstance(item, str):
        item = {"token": item}
    if not isinstance(item, dict):
        raise refuse(name, Given("", source), "a token, or a mapping of its fields", secret=True)
    block = Block(name, item, source)
    block.only(_FIELDS)
    raw = item.get("raw") or {}
    if not isinstance(raw, dict):
        raise block.refuse("raw", "a mapping of claims")
    scopes = block.texts("scopes")
    if str(raw.get("role", "")).upper() == "ADMIN":
        scopes = (*scopes, Role.ADMIN.value)
    if not set(scopes) <= set(SCOPES):
        raise block.refuse("scopes", f"a list of {', '.join(SCOPES)}")
    return StaticToken(
        token=block.secret("token").strip(),
        subject=block.text("subject") or "static",
        tenant=_tenant(block, raw),
        scopes=tuple(dict.fromkeys(scopes)),
        event_types=block.texts("eventTypes"),
    )


def _tenant(block: Block, raw: Mapping[str, object]) -> str | None:
    named = {str(raw[claim]) for claim in TENANT_CLAIMS if raw.get(claim)}
    if block.fields.get("tenant"):
        named.add(str(block.fields["tenant"]))
    if not named:
        return None
    if len(named) > 1 or not TENANT.fullmatch(next(iter(named))):
        raise refuse(
            f"{block.name}.tenant",
            Given(", ".join(sorted(named)), block.source),
            "one name, a-z first, then 1 to 62 of a-z 0-9 -",
        )
    return named.pop()
