"""Links: every artifact's URL leads back to it, and no other URL does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.artifacts.names import is_name
from codeq_cluster.broker import links
from codeq_cluster.core.task import Artifact

UPLOAD = "0123456789abcdef"
NAMES = st.text(min_size=1, max_size=60).filter(is_name)


@pytest.mark.parametrize("base", ["", "https://codeq.example.com", "http://[::1]:8080/q"])
@given(name=NAMES)
def test_a_link_leads_back_to_its_artifact(base: str, name: str) -> None:
    """The name may have any characters."""
    url = links.link(base, "task:1", UPLOAD, name)

    assert (UPLOAD, name) == links.target(url, "task:1")
    assert links.target(url, "task:2") is None
    assert url.isascii()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://example.com/a",
        "ftp://example.com/v1/codeq/tasks/t/artifacts/0123456789abcdef/a",
        "/v1/codeq/tasks/t/artifacts/0123456789abcdef/",
        "/v1/codeq/tasks/t/artifacts/0123456789abcdef/a?b",
        "/v1/codeq/tasks/t/artifacts/0123456789abcde/a",
        "/v1/codeq/tasks/t/artifacts/../a",
        "/v1/codeq/tasks/t/u/artifacts/0123456789abcdef/a",
        "https://example.com/?/v1/codeq/tasks/t/artifacts/0123456789abcdef/a",
    ],
)
def test_other_urls_lead_nowhere_here(url: str) -> None:
    """They are kept unchanged."""
    assert links.target(url, "t") is None


def test_a_results_uploads_are_listed_once_and_only_of_its_own_task() -> None:
    """Other artifacts belong to no upload."""
    own = [links.link("", "t", UPLOAD, name) for name in ("a", "b")]
    other = links.link("", "u", UPLOAD, "a")
    artifacts = [Artifact("x", url) for url in (*own, other, "https://example.com")]

    assert (UPLOAD,) == links.uploads(artifacts, "t")


def test_no_two_uploads_have_one_id() -> None:
    """Two uploads of the same files have different ids too."""
    digest = "d" * links.DIGEST_CHARS
    drawn = {links.new_upload(digest) for _ in range(1000)}

    assert 1000 == len(drawn)
    for upload in (*drawn, links.new_upload()):
        assert (upload, "a") == links.target(links.link("", "t", upload, "a"), "t")
