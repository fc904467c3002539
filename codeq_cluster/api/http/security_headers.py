"""Security headers: headers that every answer carries."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

# aiohttp would reveal its name and version.
HEADERS: Mapping[str, str] = {
    "Server": "codeq-cluster",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def guard(headers: MutableMapping[str, str]) -> None:
    """Add each header that the answer does not set itself."""
    for name, text in HEADERS.items():
        headers.setdefault(name, text)
