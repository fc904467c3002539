"""Unreadable bodies: what is no JSON is refused in words that help its sender."""

from __future__ import annotations

import gzip

import pytest

from tests.integration.http.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

GOOD = b'{"command":"c","payload":1}'
HALF = "half of a surrogate pair"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xef\xbb\xbf" + GOOD, "byte order mark"),
        (gzip.compress(GOOD, mtime=0), "compressed"),
        (GOOD.decode().encode("utf-16"), "is not UTF-8"),
        (rb'{"command":"c","payload":"\ud800"}', HALF),
        (rb'{"command":"c","payload":"\ud800 and more"}', HALF),
        (rb'{"command":"c","payload":"\udc00"}', HALF),
        (b'{"command":"c","payload":1', "truncated"),
        (rb'{"command":"c","payload":"\ud83d\ude00', "truncated"),
    ],
    ids=range(8),
)
async def test_the_detail_says_what_is_wrong(node: Client, body: bytes, words: str) -> None:
    """The decoder's own words for half of a pair are that the text was truncated."""
    alone = await node.post("tasks", body)
    # A query keeps the request from being read in one piece.
    apart = await node.post("tasks?consistency=", body)

    for answer in (alone, apart):
        assert (400, "invalid body") == (answer.status, answer.error)
        assert words in answer.json["detail"]
    assert (HALF in words) == (HALF in alone.json["detail"])


@pytest.mark.parametrize("token", ["1_0", "\u0661"])
async def test_a_lease_token_has_the_digits_of_ascii(node: Client, token: str) -> None:
    """Python would read more than these as a number."""
    task_id = await node.create("odd-token")
    await node.claim("odd-token")
    path = f"tasks/{task_id}/heartbeat"
    answer = await node.send("POST", path, b"{}", X_CodeQ_Lease_Token=token)

    assert (400, "invalid-lease-token") == (answer.status, answer.json["code"])
