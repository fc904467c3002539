"""Answers to requests for an artifact: whole, in part, not modified, or not satisfiable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.api.routes.artifacts import ArtifactAnswer, answer
from codeq_cluster.artifacts import Stored

STORED = Stored(size=10, etag='"v1"', content_type="text/plain")
WEAK = Stored(size=10, etag='W/"v1"', content_type="text/plain")
EMPTY = Stored(size=0, etag='"v1"', content_type="text/plain")
NAMELESS = Stored(size=10, etag="", content_type="text/plain")
WHOLE = (200, 0, 10)


def asked(stored: Stored = STORED, method: str = "GET", **headers: str) -> ArtifactAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return answer(stored, method=method, headers=named)


def outcome(found: ArtifactAnswer) -> tuple[int, int, int]:
    return (found.status, found.start, found.end)


def test_the_whole_is_described() -> None:
    """The answer has type, length and etag, and announces ranges."""
    assert (
        ArtifactAnswer(
            status=200,
            headers={
                "ETag": '"v1"',
                "Accept-Ranges": "bytes",
                "Content-Type": "text/plain",
                "Content-Length": "10",
            },
            end=10,
        )
        == asked()
    )


def test_a_part_is_described() -> None:
    """The answer has the part's own length and its place in the whole."""
    assert ArtifactAnswer(
        status=206,
        headers={
            "ETag": '"v1"',
            "Accept-Ranges": "bytes",
            "Content-Type": "text/plain",
            "Content-Length": "3",
            "Content-Range": "bytes 2-4/10",
        },
        start=2,
        end=5,
    ) == asked(Range="bytes=2-4")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (206, 0, 1)),
        ("bytes=0-9", (206, 0, 10)),
        ("bytes=9-9", (206, 9, 10)),
        ("bytes=4-", (206, 4, 10)),
        ("bytes=0-", (206, 0, 10)),
        ("bytes=5-1000", (206, 5, 10)),
        ("bytes=5-" + "9" * 5000, (206, 5, 10)),
        ("bytes=-3", (206, 7, 10)),
        ("bytes=-10", (206, 0, 10)),
        ("bytes=-11", (206, 0, 10)),
        ("bytes=-" + "9" * 5000, (206, 0, 10)),
        ("bytes=00002-0004", (206, 2, 5)),
        ("Bytes=2-4", (206, 2, 5)),
        ("bytes= 2-4 ", (206, 2, 5)),
    ],
)
def test_a_range_is_answered_with_a_part(header: str, expected: tuple[int, int, int]) -> None:
    """Ranges with two ends, with an open end, and of the last bytes are answered."""
    assert expected == outcome(asked(Range=header))


@pytest.mark.parametrize(
    "header", ["bytes=10-", "bytes=10-20", "bytes=11-11", "bytes=-0", "bytes=" + "9" * 5000 + "-"]
)
def test_a_range_past_the_end_is_not_satisfiable(header: str) -> None:
    """The answer has the artifact's length."""
    found = asked(Range=header)

    assert (416, found.start) == (found.status, found.end)
    assert "bytes */10" == found.headers["Content-Range"]
    assert "0" == found.headers["Content-Length"]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-4",
        "bytes=a-b",
        "bytes=1-2,4-5",
        "bytes=1-2;",
        "bytes=-1-2",
        "bytes=+1-2",
        "bytes=\u0661-\u0662",
        "lines=1-2",
        "0-4",
    ],
)
def test_a_range_that_is_not_understood_is_ignored(header: str) -> None:
    """RFC 9110 section 14.2 requires this; a request for several parts gets the whole."""
    assert WHOLE == outcome(asked(Range=header))


@given(
    size=st.integers(0, 50), first=st.integers(0, 60), last=st.one_of(st.none(), st.integers(0, 60))
)
def test_a_part_has_exactly_the_bytes_of_its_range(size: int, first: int, last: int | None) -> None:
    """The answer's bytes are those at the requested positions."""
    stored = Stored(size=size, etag='"v1"', content_type="a/b")
    found = asked(stored, Range=f"bytes={first}-{'' if last is None else last}")
    wanted = [at for at in range(size) if first <= at <= (size if last is None else last)]

    if last is not None and last < first:
        assert (200, 0, size) == outcome(found)
    elif wanted:
        assert (206, wanted) == (found.status, list(range(found.start, found.end)))
        assert f"bytes {wanted[0]}-{wanted[-1]}/{size}" == found.headers["Content-Range"]
    else:
        assert 416 == found.status


@pytest.mark.parametrize(
    ("header", "expected"), [("bytes=0-", (416, 0, 0)), ("bytes=-5", (200, 0, 0))]
)
def test_an_empty_artifact_has_no_part(header: str, expected: tuple[int, int, int]) -> None:
    """There is no byte to name; the last bytes of an empty artifact are the whole."""
    assert expected == outcome(asked(EMPTY, Range=header))


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ('"v1"', 304),
        ('W/"v1"', 304),
        ('"v0", "v1"', 304),
        ("*", 304),
        ('"v0"', 200),
        ('"v0", W/"v2"', 200),
        ("v1", 200),
        ("", 200),
    ],
)
def test_a_version_the_client_has_is_not_sent_again(header: str, status: int) -> None:
    """Etags are compared weakly, and the answer has the etag and no body."""
    for method in ("GET", "HEAD"):
        found = asked(method=method, If_None_Match=header)

        assert status == found.status
        assert '"v1"' == found.headers["ETag"]
    assert 304 != status or outcome(asked(If_None_Match=header)) == (304, 0, 0)


def test_a_version_the_client_has_precedes_the_range() -> None:
    """A client that has the whole artifact needs no part of it."""
    assert 304 == asked(If_None_Match='"v1"', Range="bytes=0-1").status
    assert 206 == asked(If_None_Match='"v0"', Range="bytes=0-1").status


@pytest.mark.parametrize(
    ("stored", "header", "status"),
    [
        (STORED, '"v1"', 200),
        (STORED, '"v0", "v1"', 200),
        (STORED, "*", 200),
        (STORED, '"v0"', 412),
        (STORED, 'W/"v1"', 412),
        (WEAK, 'W/"v1"', 412),
        (NAMELESS, '"v1"', 412),
        (NAMELESS, "*", 200),
    ],
)
def test_another_version_than_demanded_is_not_sent(
    stored: Stored, header: str, status: int
) -> None:
    """Etags are compared strongly."""
    assert status == asked(stored, If_Match=header).status


@pytest.mark.parametrize(
    ("stored", "header", "expected"),
    [
        (STORED, '"v1"', (206, 2, 5)),
        (STORED, '"v0"', WHOLE),
        (STORED, 'W/"v1"', WHOLE),
        (STORED, "Wed, 21 Oct 2026 07:28:00 GMT", WHOLE),
        (WEAK, 'W/"v1"', WHOLE),
        (NAMELESS, '""', WHOLE),
    ],
)
def test_a_part_belongs_to_the_version_the_client_has(
    stored: Stored, header: str, expected: tuple[int, int, int]
) -> None:
    """With If-Range another version comes whole, so that a client never joins two versions."""
    assert expected == outcome(asked(stored, If_Range=header, Range="bytes=2-4"))


def test_a_head_is_answered_as_the_whole_without_it() -> None:
    """HEAD ignores ranges, and its answer has no body."""
    found = asked(method="HEAD", Range="bytes=2-4")

    assert (200, 0, 0) == outcome(found)
    assert "10" == found.headers["Content-Length"]
    assert "Content-Range" not in found.headers


def test_a_store_without_etags_serves_all_the_same() -> None:
    """The answer has no etag, and conditions match nothing."""
    found = asked(NAMELESS, If_None_Match='""', Range="bytes=2-4")

    assert (206, 2, 5) == outcome(found)
    assert "ETag" not in found.headers
