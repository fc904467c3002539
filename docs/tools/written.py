"""Written: which files of docs/ follow from the code, and what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from docs.tools import http, lifecycle

DIRECTORY = Path(__file__).resolve().parents[1]


def pages() -> Mapping[str, str]:
    """Return the text of each file by its name."""
    return {
        "http.md": http.reference(http.document()),
        "lifecycle.svg": lifecycle.drawing(),
    }
