"""Written: the files generated from the code or from measurements, with their contents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from docs.tools import comparison, configuration, http, lifecycle

ROOT = Path(__file__).resolve().parents[2]


def pages() -> Mapping[str, str]:
    """Return the text of each file by its path below `ROOT`."""
    return {
        "docs/http.md": http.reference(http.document()),
        "docs/configuration.md": configuration.described(_read("docs/configuration.md")),
        "docs/lifecycle.svg": lifecycle.drawing(),
        "README.md": comparison.compared(_read("README.md"), _read("docs/performance.md")),
    }


def _read(path: str) -> str:
    return (ROOT / path).read_text()
