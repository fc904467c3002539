"""Command `webhook`: the key is shown, and rotated with consent."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from codeq_cluster.cli.main import main


def _said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert code == main(["webhook", "key", *arguments])
    return capsys.readouterr()


def _keys(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_said(capsys, *arguments, "--json")[0])["keys"]
    return found


def test_the_key_is_printed_and_rotated(capsys: pytest.CaptureFixture[str]) -> None:
    """Without consent nothing is rotated; afterwards both keys sign until the overlap ends."""
    [first] = _keys(capsys, "ls")
    withheld = _said(capsys, "rotate", code=2)[1]
    unchanged = _keys(capsys, "ls")
    dry = _said(capsys, "rotate", "--dry-run", "--json")[0]
    new, old = _keys(capsys, "rotate", "--overlap", "3600", "--yes")
    table = _said(capsys, "ls")[0]

    assert re.fullmatch(r"cqwh_[\w-]{43}", first["key"])
    assert [first] == unchanged
    assert "add --yes" in withheld
    assert {"rotated": False} == json.loads(dry)
    assert first["version"] + 1 == new["version"]
    assert (first["key"], True) == (old["key"], bool(old["signsUntil"]))
    assert all(each["key"] in table and each["id"] in table for each in (new, old))


def test_an_overlap_out_of_bounds_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster's reason is printed."""
    said = _said(capsys, "rotate", "--overlap", "-1", "--yes", code=4)[1]

    assert "overlapSeconds" in said
