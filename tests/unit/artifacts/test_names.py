"""Names of artifacts: the allowed ones, and their paths."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codeq_cluster.artifacts.names import (
    artifact_path,
    is_content_type,
    is_name,
    task_prefix,
    upload_prefix,
)

# Most examples are names that could lead elsewhere.
NAMES = st.one_of(
    st.text(max_size=300),
    st.lists(st.sampled_from(["..", ".", "", "a", "!", "%2e%2e", "#1", "é"]), max_size=6).map(
        "/".join
    ),
)


def path(name: str) -> str:
    return artifact_path("acme", "t1", "u1", name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "..",
        ".",
        "../a",
        "a/../b",
        "a/..",
        "./a",
        "a//b",
        "a/",
        "..\\a",
        "a\\b",
        "a\x00b",
        "a\nb",
        "a\x7f",
        "a\x85b",
        "a\u2028b",
        "\ud800",
        "x" * 256,
    ],
)
def test_an_invalid_artifact_name_is_refused(name: str) -> None:
    """Neither the check nor the path accepts it."""
    assert not is_name(name)
    with pytest.raises(ValueError, match="no name of an artifact"):
        path(name)


@pytest.mark.parametrize("name", ["a", "...", "..a", ".hidden", "a/b/c.txt", "x" * 255, "日本 🎉"])
def test_an_ordinary_name_is_one(name: str) -> None:
    """Subdirectories, dots and other scripts are ordinary."""
    assert is_name(name)


@given(NAMES)
@example("a/.hidden")
@example("%2e%2e/a")
@example("🎉" * 255)
def test_no_name_leads_out_of_its_upload(name: str) -> None:
    """The path of any name is one more segment below the upload's prefix."""
    if not is_name(name):
        with pytest.raises(ValueError, match="no name"):
            path(name)
        return
    prefix, _, segment = path(name).rpartition("/")

    assert upload_prefix("acme", "t1", "u1") == prefix == "acme/t1/u1"
    assert segment not in {"", ".", ".."}
    assert segment.isascii()
    assert segment.isprintable()
    assert not set(segment) & set("/\\%#? ")
    assert len(segment) <= 160


@given(NAMES.filter(is_name), NAMES.filter(is_name))
@example("x" * 200, "x" * 201)
@example("a/b", "a!2Fb")
@example("a b", "a!20b")
def test_two_names_have_two_paths(one: str, other: str) -> None:
    """Escaping and shortening keep names apart."""
    assert (one == other) == (path(one) == path(other))


@given(st.text().filter(str.isprintable), st.text(min_size=1).filter(str.isprintable))
@example("", "task")
def test_no_task_has_another_tasks_prefix(tenant: str, task_id: str) -> None:
    """A prefix is two segments, whatever the names of tenant and task."""
    segments = task_prefix(tenant, task_id).split("/")

    assert 2 == len(segments)
    assert not {"", ".", ".."} & set(segments)
    assert (segments[0] == task_prefix("", task_id).partition("/")[0]) == (tenant == "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text/plain", True),
        ("text/plain; charset=utf-8", True),
        ('multipart/form-data; boundary="a b"', True),
        ("application/vnd.api+json", True),
        ("", False),
        ("text", False),
        ("text/", False),
        ("text/plain\r\nX-Evil: 1", False),
        ("text/plain\n", False),
        ("text/plain; charset", False),
        ("text/plän", False),
        ("a/" + "b" * 254, False),
    ],
)
def test_a_content_type_is_a_media_type(text: str, *, expected: bool) -> None:
    """Any other text is kept out of the header."""
    assert expected == is_content_type(text)
