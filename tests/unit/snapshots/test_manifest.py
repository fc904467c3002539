"""Manifests: each survives the wire, and no file name leads out of its directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.snapshots import manifest as manifests
from codeq_cluster.snapshots.manifest import FILES_MAX, File, SnapshotManifest

NAMES = st.from_regex(r"\A[A-Za-z0-9_-]{1,30}(\.[A-Za-z0-9]{1,6})?\Z")
MANIFESTS = st.builds(
    SnapshotManifest,
    id=st.text("0123456789abcdef", min_size=1, max_size=16),
    shard=st.integers(0, 1023),
    index=st.integers(1, 2**53),
    term=st.integers(0, 2**53),
    digest=st.binary(min_size=16, max_size=16),
    files=st.lists(
        st.builds(File, NAMES, st.integers(0, 2**40)),
        min_size=1,
        max_size=20,
        unique_by=lambda file: file.name,
    ).map(tuple),
)


def said(*files: tuple[object, object]) -> object:
    return ["id", 0, 9, 1, bytes(16), [list(file) for file in files], b""]


@given(MANIFESTS)
def test_a_manifest_arrives_as_it_left(manifest: SnapshotManifest) -> None:
    """A manifest travels as the plain values that the link carries."""
    assert manifest == manifests.decode(manifests.encode(manifest))


@given(
    st.text(max_size=20) | st.lists(st.sampled_from(["..", ".", "/", "a", "\0", "\n"])).map("".join)
)
def test_a_name_that_is_taken_stays_in_its_directory(name: str) -> None:
    """A file lands in the snapshot's directory or nowhere, whatever a peer sends."""
    root = Path("/data/shard-0.incoming")
    try:
        manifests.decode(said((name, 1)))
    except ValueError:
        return
    assert root == (root / name).parent
    assert name not in ("", ".", "..")
    assert name.isascii()
    assert name.isprintable()


@pytest.mark.parametrize(
    "files",
    [
        [],
        [("../CURRENT", 1)],
        [("/etc/passwd", 1)],
        [("a/b", 1)],
        [("..", 1)],
        [(".", 1)],
        [("", 1)],
        [(".hidden", 1)],
        [("a\n", 1)],
        [("a\0b", 1)],
        [("a.b.c", 1)],
        [("á", 1)],
        [("a", -1)],
        [("a", 1), ("a", 2)],
        [("a", "1")],
        [("a", 1.5)],
        [(b"a", 1)],
        [("a",)],
    ],
)
def test_an_impossible_manifest_is_refused(files: list[tuple[object, object]]) -> None:
    """Names that lead elsewhere, repeat or are missing, and negative sizes, are refused."""
    with pytest.raises(ValueError, match=r".+"):
        manifests.decode(said(*files))


def test_too_many_files_are_refused() -> None:
    """A peer cannot make this node create files without end."""
    files = [(f"f{n}", 1) for n in range(FILES_MAX + 1)]

    manifests.decode(said(*files[:-1]))
    with pytest.raises(ValueError, match="too many"):
        manifests.decode(said(*files))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
        lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=15,
    )
)
def test_anything_else_is_a_value_error(anything: object) -> None:
    """Only this exception lets the fetch give up and start over."""
    with pytest.raises(ValueError, match=r".+"):
        manifests.decode(anything)
