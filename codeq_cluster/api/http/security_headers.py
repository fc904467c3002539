"""Security headers: headers that every answer carries."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

# aiohttp would reveal its name and version.
HEADERS: Mapping[str, str] = {
    "Server": "codeq-cluster",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def guard(headers: MutableMapping[str, str]) -> None:
    """Forbid caching and content sniffing, unless the answer sets these headers itself."""
    for name, text in HEADERS.items():
        headers.setdefault(name, text)
