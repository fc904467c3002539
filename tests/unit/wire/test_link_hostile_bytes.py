"""Hostile bytes: for any input, each reader ends in a value or its own refusal, in little memory.

Sealed bytes come from a peer that holds the secret, so they stand for a broken or captured node.
Unsealed bytes can come from anybody.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.codec import entries
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.raft import messages as raft
from codeq_cluster.wire.frames import decode_greeting
from codeq_cluster.wire.handshake import Accepting, Dialling, LinkIdentity
from codeq_cluster.wire.messages import (
    Message,
    RaftMessage,
    answer_item,
    bundle,
    failure_item,
    pack,
    parse_bundle,
    raft_item,
    request_item,
    unpack,
)
from codeq_cluster.wire.refusals import FrameRefusedError, HandshakeRefusedError

PEAK_BYTES_MAX = 2**20

# One message of every kind, stamped as on the wire.
SPOKEN = [
    unpack(raft.render(message, incarnation=2**63, seq=7))
    for message in (
        raft.Append(
            term=3, prev=5, prev_term=2, commit=4, terms=[3, 3], commands=[b"\x00a", b"\x01b"],
            floor=1, round=9, applied=4, digest=b"d" * 16, quiet=False,
        ),
        raft.Answer(
            term=3, next=8, success=True, reset=False, of_incarnation=1, of_seq=2, round=9,
            applied=4, digest=b"d" * 16, awaited=False,
        ),
        raft.VoteRequest(term=3, last=5, last_term=2, transfer=False),
        raft.Vote(term=3),
        raft.PreVoteRequest(term=3, last=5, last_term=2),
        raft.PreVote(term=3, asked=4, granted=True),
        raft.TimeoutNow(term=3),
        raft.TermHint(term=3),
    )
]  # fmt: skip
NAMES = st.sampled_from(sorted({name for spoken in SPOKEN for name in spoken}))
ITEMS = [
    *(raft_item(0, pack(message)) for message in SPOKEN),
    request_item(9, "decide", 0.5, pack({"a": [b"b", None, 1.5, True]})),
    answer_item(9, pack({"a": "b"})),
    failure_item(9, entries.EntryInvalid("damaged")),
]
BUNDLES = [bundle(ITEMS), *(bundle([item]) for item in ITEMS)]
ENTRY = entries.encode(entries.Entry(1, 2, 3, 4, {b"key": b"value", b"gone": None}), level=LEVEL)

# Short messages that announce sizes far beyond their bytes, or beyond any memory.
BOMBS = {
    "a list of four thousand million": b"\x9a\xff\xff\xff\xff",
    "a list of 2**64 - 1": b"\x9b" + b"\xff" * 8,
    "a map of four thousand million": b"\xba\xff\xff\xff\xff",
    "a map of 2**64 - 1": b"\xbb" + b"\xff" * 8,
    "four gigabytes": b"\x5a\xff\xff\xff\xff",
    "2**63 - 1 bytes": b"\x5b\x7f" + b"\xff" * 7,
    "a text of four gigabytes": b"\x7a\xff\xff\xff\xff",
    "lists of lists, each large": b"\x9a\x01\x00\x00\x00" * 800,
    "a hundred thousand lists in each other": b"\x81" * 100_000,
    "a hundred thousand maps in each other": b"\xa1\x01" * 100_000,
    "a thousand keys in each other": b"\xa1" * 1000,
    "a list without an end": b"\x9f" * 1000,
    "a list that holds itself": b"\xd8\x1c\x81\xd8\x1d\x00",
    "a number of ten thousand bytes": b"\xc2\x59\x27\x10" + b"\xff" * 10_000,
    "a fraction with an absurd exponent": b"\xc4\x82\x1b" + b"\x7f" * 8 + b"\x01",
    "a pattern that takes for ever": b"\xd8\x23\x68(a+)+b$x",
    "a text that is none": b"\x62\xff\xff",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_greeting_that_announces_more_than_it_sends_is_refused(bomb: bytes) -> None:
    """No size and no depth is believed before the bytes are there."""
    tracemalloc.start()
    try:
        with pytest.raises(FrameRefusedError):
            decode_greeting(bomb)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < PEAK_BYTES_MAX


@st.composite
def damaged(draw: st.DrawFn, wholes: list[bytes]) -> bytes:
    """Return a valid body that was cut, partly repeated and partly changed."""
    whole = bytearray(draw(st.sampled_from(wholes)))
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    whole = draw(st.sampled_from([whole, whole[:end], whole[start:], whole[:end] + whole[start:]]))
    for at, value in draw(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4)):
        if whole:
            whole[at % len(whole)] = value
    return bytes(whole)


@given(body=damaged(BUNDLES))
def test_a_damaged_bundle_is_refused_or_is_another_bundle(body: bytes) -> None:
    """The fields of a Raft message are parsed by its group, so that parser is tried too."""
    with suppress(FrameRefusedError):
        for message in parse_bundle(body):
            read_on(message)


def read_on(message: Message) -> None:
    """Give a Raft message to the group's own parser."""
    if isinstance(message, RaftMessage):
        with suppress(ValueError):
            raft.parse(message.message)


PACKED_BOMBS = {
    "a list of four thousand million": b"\xdd\xff\xff\xff\xff",
    "a map of four thousand million": b"\xdf\xff\xff\xff\xff",
    "four gigabytes": b"\x91\x91\xc6\xff\xff\xff\xff",
    "a text of four gigabytes": b"\x91\x91\xdb\xff\xff\xff\xff",
    "lists of lists, each large": b"\xdd\x01\x00\x00\x00" * 800,
    "a hundred thousand lists in each other": b"\x91" * 100_000,
    "a hundred thousand maps in each other": b"\x91\x91" + b"\x81\x01" * 100_000,
    "an extension": b"\x91\x91\xd4\x01\x00",
    "a text that is none": b"\x91\x91\xa2\xff\xff",
}


def read_entry(body: bytes) -> object:
    return entries.decode(b"\x01" + body)


READERS: list[tuple[Callable[[bytes], object], type[Exception]]] = [
    (parse_bundle, FrameRefusedError),
    (read_entry, entries.EntryInvalid),
]


@pytest.mark.parametrize("bomb", PACKED_BOMBS.values(), ids=PACKED_BOMBS.keys())
@pytest.mark.parametrize(("read", "refusal"), READERS)
def test_packed_bytes_that_announce_more_than_they_send_are_refused(
    read: Callable[[bytes], object], refusal: type[Exception], bomb: bytes
) -> None:
    """No size and no depth is believed before the bytes are there."""
    tracemalloc.start()
    try:
        with pytest.raises(refusal):
            read(bomb)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < PEAK_BYTES_MAX


@given(body=damaged([ENTRY]))
def test_a_damaged_entry_is_refused_or_is_another_entry(body: bytes) -> None:
    """An entry that is read could have been written: it reads back as the same."""
    with suppress(entries.EntryInvalid):
        entry = entries.decode(body)

        assert entry == entries.decode(entries.encode(entry, level=LEVEL))


plain: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(
    spoken=st.sampled_from(SPOKEN),
    changes=st.dictionaries(NAMES | st.text(max_size=2), plain),
    missing=st.sets(NAMES, max_size=2),
)
def test_fields_of_another_kind_are_refused(
    spoken: dict[str, object], changes: dict[str, object], missing: set[str]
) -> None:
    """A Raft message with a field replaced, added or removed is either valid or refused."""
    changed = {name: value for name, value in (spoken | changes).items() if name not in missing}
    defaults = {"i": 0, "s": 0}
    with suppress(ValueError):
        message = raft.parse(packed(changed))

        again = raft.render(message, incarnation=message.incarnation, seq=message.seq)
        assert message == raft.parse(again)
        assert defaults | changed == unpack(again)


def packed(fields: dict[str, object]) -> bytes:
    """Return the bytes a peer could have sent; numbers beyond 64 bits cannot be packed."""
    try:
        return pack(fields)
    except OverflowError as error:
        raise ValueError("no number of the link") from error


def identity(node_id: str) -> LinkIdentity:
    return LinkIdentity(node_id=node_id, cluster_id="c", incarnation=7, secret=b"secret")


def greetings() -> tuple[Accepting, Dialling, list[bytes]]:
    """Return both sides before their handshake, and the greetings of an honest one."""
    acceptor = Accepting(identity("n2"), {"n1"}, lambda *_: None)
    dialler = Dialling(identity("n1"), "n2", session=1)
    other = Dialling(identity("n1"), "n2", session=2)
    other_side = Accepting(identity("n2"), {"n1"}, lambda *_: None)
    said = [other.hello()]
    said.append(other_side.receive(said[-1])[0])
    proof = other.receive(said[-1])
    assert isinstance(proof, bytes)
    return acceptor, dialler, [*said, proof, other_side.receive(proof)[0]]


@given(data=st.data())
def test_damaged_and_reordered_greetings_open_no_session(data: st.DataObject) -> None:
    """Greetings of another, honest handshake are worthless in any order and however damaged."""
    acceptor, dialler, said = greetings()
    heard = data.draw(st.lists(st.sampled_from(said) | damaged(said), max_size=5))
    with suppress(FrameRefusedError, HandshakeRefusedError):
        for greeting in heard:
            _, session = acceptor.receive(greeting)
            assert session is None
    with suppress(FrameRefusedError, HandshakeRefusedError):
        for greeting in heard:
            assert isinstance(dialler.receive(greeting), bytes)


def test_the_examples_above_are_valid_before_the_damage() -> None:
    """Every message and the entry are valid before the damage, so the damage alone is refused."""
    parsed = [
        raft.parse(message.message)
        for message in parse_bundle(BUNDLES[0])
        if isinstance(message, RaftMessage)
    ]

    assert len(SPOKEN) == len(parsed)
    assert 4 == entries.decode(ENTRY).seq
