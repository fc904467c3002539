"""Guarding: headers that every answer carries, whoever makes it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

# The library would name itself, and its version with it.
HEADERS: Mapping[str, str] = {
    "Server": "codeq-cluster",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def guard(headers: MutableMapping[str, str]) -> None:
    """Let no cache keep an answer and no browser guess what it is, unless it says so itself."""
    for name, text in HEADERS.items():
        headers.setdefault(name, text)
