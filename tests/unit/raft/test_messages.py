"""Messages: a valid message survives the wire, and every other one is refused."""

from __future__ import annotations

import msgspec
import pytest

from codeq_cluster.raft.messages import (
    Answer,
    Append,
    Beat,
    Message,
    PreVote,
    PreVoteRequest,
    TermHint,
    TimeoutNow,
    Vote,
    VoteRequest,
    parse,
    render,
)

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode

# The largest incarnation: every bit of the field must survive.
INCARNATION, SEQ = 2**64 - 1, 41
APPEND = Append(
    term=4,
    prev=7,
    prev_term=3,
    commit=7,
    terms=[3, 4],
    commands=[b"\x00a", b"\x01"],
    floor=2,
    round=9,
    applied=7,
    digest=b"d" * 16,
    quiet=False,
)
MESSAGES = [
    APPEND,
    Answer(
        term=4,
        next=8,
        success=True,
        reset=False,
        of_incarnation=2**64 - 1,
        of_seq=2,
        round=9,
        applied=7,
        digest=b"",
        awaited=True,
    ),
    VoteRequest(term=4, last=7, last_term=3, transfer=True),
    Vote(term=4),
    PreVoteRequest(term=5, last=7, last_term=3),
    PreVote(term=4, asked=5, granted=True),
    TimeoutNow(term=4),
    TermHint(term=4),
    Beat(term=0, led=[(3, 4), (255, 2**53)], of_incarnation=2**64 - 1, of_seq=2, refused=[3]),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Message) -> None:
    """Parsing gives back the rendered message and its stamp."""
    raw = render(message, incarnation=INCARNATION, seq=SEQ)

    again = parse(raw)

    assert raw == render(again, incarnation=again.incarnation, seq=again.seq)
    assert (type(message), 2**64 - 1, 41) == (type(again), again.incarnation, again.seq)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_field_too_few_or_too_many_is_refused(message: Message) -> None:
    """Every field is required, and no other field is allowed."""
    raw = unpack(render(message, incarnation=INCARNATION, seq=SEQ))

    for name in raw.keys() - {"i", "s"}:
        with pytest.raises(ValueError, match=r".+"):
            parse(pack({key: value for key, value in raw.items() if key != name}))
    with pytest.raises(ValueError, match="zz"):
        parse(pack({**raw, "zz": 1}))


@pytest.mark.parametrize(
    "change",
    [
        {"t": 9},
        {"t": "1"},
        {"t": True},
        {"t": [1]},
        {"e": -1},
        {"i": -1},
        {"e": 2**60},
        {"e": True},
        {"e": 4.0},
        {"p": "7"},
        {"p": 0},
        {"ec": ["AGE=", "AQ=="]},
        {"ec": [b"\x00a"]},
        {"ec": [b"\x00a", b""]},
        {"ec": [b"\x00a", b"\x02x"]},
        {"et": [4, 3]},
        {"et": [2, 4]},
        {"et": [4, 5]},
        {"et": [4] * 5000, "ec": [b"\x01"] * 5000},
        {"d": b"x" * 17},
        {"y": 1},
    ],
    ids=str,
)
def test_what_no_peer_of_ours_would_say_is_refused(change: dict[str, object]) -> None:
    """Wrong types, wrong ranges, descending terms and the library's other entries are refused."""
    with pytest.raises(ValueError, match=r".+"):
        parse(pack({**unpack(render(APPEND, incarnation=INCARNATION, seq=SEQ)), **change}))
