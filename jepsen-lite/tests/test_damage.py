"""Damage: one file changes, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_lite.damage import Damage, _damaged, damage


@given(st.binary(min_size=1, max_size=20_000), st.floats(0, 1, exclude_max=True), st.booleans())
def test_flips_and_lost_tails_always_change_something(
    content: bytes, where: float, flip: bool
) -> None:
    """Flips keep the length, and a truncation removes at least one byte."""
    after = _damaged(content, "flip" if flip else "truncate", where)

    assert after != content
    assert len(after) == len(content) if flip else len(after) < len(content)


def test_a_page_of_zeros_keeps_the_length() -> None:
    """A page of zeros keeps the file's length and the bytes around the page."""
    content = b"x" * 10_000
    after = _damaged(content, "zero", 0.5)

    assert len(content) == len(after)
    assert 4096 == after.count(0)
    assert content[:4096] == after[:4096]


def test_one_file_is_struck(tmp_path: Path) -> None:
    """Exactly one of the files that match the pattern is damaged, at any depth."""
    for name in ("shard-0/1.sst", "shard-0/2.sst", "shard-0/3.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"content")

    assert damage(tmp_path, Damage(kind="flip", of="*.sst", draw=0.9))
    assert b"content" == (tmp_path / "shard-0/1.sst").read_bytes()
    assert (tmp_path / "shard-0/2.sst").read_bytes() != b"content"
    assert b"content" == (tmp_path / "shard-0/3.log").read_bytes()


@pytest.mark.parametrize("name", ["LOCK", "LOG", "empty.sst"])
def test_files_that_hold_nothing_are_left_alone(tmp_path: Path, name: str) -> None:
    """Damage to an empty file would count as a fault and have no effect."""
    (tmp_path / name).write_bytes(b"" if name == "empty.sst" else b"text")

    assert not damage(tmp_path, Damage(kind="flip", of="*", draw=0.0))


def test_a_file_can_be_gone(tmp_path: Path) -> None:
    """Exactly one file is deleted."""
    for name in ("CURRENT", "1.sst"):
        (tmp_path / name).write_bytes(b"content")

    assert damage(tmp_path, Damage(kind="gone", of="CURRENT", draw=0.5))
    assert ["1.sst"] == [each.name for each in tmp_path.iterdir()]
    assert not damage(tmp_path, Damage(kind="gone", of="CURRENT", draw=0.5))
