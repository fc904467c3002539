"""Message ends: a stranger's chunks and empty lines keep a connection's reader busy for moments."""

from __future__ import annotations

import asyncio

from codeq_cluster.api.http.message_ends import CHUNKS_AT_ONCE, MessageEnds
from tests.unit.api.http.wire import Connections, Loop, statuses

_HEAD = b"POST /unread HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n"
_TINY = b"1\r\na\r\n"


def test_a_body_of_tiny_chunks_goes_on_in_pieces() -> None:
    """Each piece has a bounded number of them, and together they are the body."""
    whole = _HEAD + _TINY * (3 * CHUNKS_AT_ONCE)
    ends, pieces = MessageEnds(), []
    while left := whole[sum(pieces) :]:
        pieces.append(ends.follow(left))

    assert 3 <= len(pieces) <= 5
    assert max(pieces) <= len(_HEAD) + len(_TINY) * CHUNKS_AT_ONCE
    assert ends.in_chunks


def test_chunks_that_are_not_followed_go_on_in_pieces() -> None:
    """A chunk with an extension hides where the next one begins."""
    ends = MessageEnds()
    whole = _HEAD + b"1;extended=yes-and-long\r\na\r\n" + _TINY * 50_000
    given = [ends.follow(whole)]
    given.append(ends.follow(whole[given[0] :]))

    assert ends.unknown
    assert all(0 < each < len(_TINY) * CHUNKS_AT_ONCE for each in given)


def test_a_head_after_a_stream_of_empty_lines_is_refused() -> None:
    """A few are ignored."""
    few, many = MessageEnds(), MessageEnds()
    given = few.follow(b"\r\n" * 8 + _HEAD), many.follow(b"\r\n" * 50_000 + _HEAD)

    assert (False, True) == (few.refused, many.refused)
    assert given[0] == len(b"\r\n" * 8 + _HEAD)
    assert given[1] < 100


def test_the_rest_of_an_answered_body_is_taken_and_not_read() -> None:
    """Its sender reads the answer; the connection ends without a look at the chunks."""

    async def test() -> None:
        made = Connections()
        await made.open()
        flood = [(_TINY * 20_000, True)] * 50
        outcome = await made.ours([(_HEAD, True), *flood], whole=False)
        await made.close()

        assert [b"200"] == statuses(outcome)
        assert outcome.closed
        assert 51 == outcome.taken

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(test())
