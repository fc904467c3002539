"""Guarantees: each judged one is documented, and the documentation says where it is judged."""

from __future__ import annotations

import re

from jepsen_lite.checker.judging import PROMISES
from jepsen_lite.running import HOME

TEXT = (HOME.parent / "docs" / "guarantees.md").read_text()
README = (HOME / "README.md").read_text()


def test_every_guarantee_has_a_paragraph_in_the_documentation() -> None:
    """The table at the end of the page names each one once, with a section that exists."""
    rows = re.findall(r"^\| (G[\dG, ]+) \|.*\(#([a-z-]+)\) \|$", TEXT, re.MULTILINE)
    named = [name for names, _ in rows for name in names.split(", ")]
    sections = {
        re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    }

    assert sorted(PROMISES) == sorted(named)
    assert {section for _, section in rows} <= sections


def test_every_guarantee_is_explained_where_the_harness_is() -> None:
    """The README says how each is judged."""
    assert set(PROMISES) == set(re.findall(r"^\| (G\d+) \|", README, re.MULTILINE))


def test_every_judged_promise_says_what_it_survives_and_where_it_ends() -> None:
    """Each section states both, because a promise without limits cannot be kept."""
    named = set(re.findall(r"^\| G[\dG, ]+ \|.*\(#([a-z-]+)\) \|$", TEXT, re.MULTILINE))
    sections = {
        re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-"): text
        for title, text in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", TEXT, re.MULTILINE)
    }

    lacking = [
        name
        for name in named
        if "**Survives:**" not in sections[name] or "**Does not:**" not in sections[name]
    ]
    assert not lacking
