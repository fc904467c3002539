"""Links: each one in the documentation leads to an existing file, and to a heading in it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = sorted(
    [
        _ROOT / "README.md",
        *(_ROOT / "docs").rglob("*.md"),
        *(_ROOT / "deploy").rglob("*.md"),
        *(_ROOT / "codeq_cluster").rglob("DESIGN.md"),
    ]
)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def _headings(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub derives from a page's headings."""
    text = _FENCED.sub("", page.read_text())
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    """Only links within the repository are checked."""
    astray = []
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        known = target.suffix != ".md" or not anchor or anchor in _headings(target)
        if not target.exists() or not known:
            astray.append(link)

    assert [] == astray


def test_the_index_names_every_page() -> None:
    """Pages in directories below docs/ are named by pages that the index names."""
    index = (_ROOT / "docs" / "README.md").read_text()
    pages = {page.name for page in (_ROOT / "docs").glob("*.md")} - {"README.md"}

    assert pages == {link for link in _LINK.findall(index) if re.fullmatch(r"[\w-]+\.md", link)}
