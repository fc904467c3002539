"""Messages: written ones are read back, and those outside the schema are refused."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.errors import (
    CodeqError,
    ConfigInvalid,
    MethodUnknown,
    NoLeader,
    NotLeader,
    OperationTooLarge,
    OutcomeUnknown,
    Overloaded,
    StorageFailed,
)
from codeq_cluster.wire.addresses import Address
from codeq_cluster.wire.counters import LinkCounters
from codeq_cluster.wire.messages import (
    Failure,
    Message,
    RaftMessage,
    RpcAnswer,
    RpcRequest,
    answer_item,
    bundle,
    failure_item,
    pack,
    parse_bundle,
    raft_item,
    request_item,
)
from codeq_cluster.wire.refusals import BadFrame, FrameRefusedError, HandshakeRefusal

ITEMS = [
    raft_item(3, pack({"type": "append", "term": 5, "entries": [b"x", None, 1.5, True]})),
    request_item(9, "decide", 0.5, pack({"a": b"b"})),
    answer_item(9, pack([1, "x"])),
    failure_item(1, NoLeader("shard 3")),
]


def bundled(item: list[object]) -> Message:
    """Return the message that the link reads from an item."""
    [message] = parse_bundle(bundle([item]))
    return message


def test_every_message_is_read_back_unchanged() -> None:
    """The packed part survives the wire unchanged."""
    raft, request, answer = ITEMS[0][-1], ITEMS[1][-1], ITEMS[2][-1]
    assert isinstance(raft, bytes)
    assert isinstance(request, bytes)
    assert isinstance(answer, bytes)

    assert RaftMessage(3, raft) == bundled(ITEMS[0])
    assert RpcRequest(9, "decide", 0.5, request) == bundled(ITEMS[1])
    assert RpcAnswer(9, answer) == bundled(ITEMS[2])


def test_a_bundle_is_read_in_order() -> None:
    """A bundle has the messages of one pass of the loop; an empty one is a sign of life."""
    messages = parse_bundle(bundle(ITEMS))

    assert [RaftMessage, RpcRequest, RpcAnswer, Failure] == [type(message) for message in messages]
    assert [] == parse_bundle(bundle([]))


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (NotLeader("n2"), NotLeader, "not the leader; leader hint: n2"),
        (NotLeader(), NotLeader, "not the leader; leader hint: none"),
        (NoLeader("shard 3"), NoLeader, "shard 3"),
        (OutcomeUnknown("entry 5"), OutcomeUnknown, "entry 5"),
        (Overloaded("the queue", retry_after_s=3), Overloaded, "the queue is full"),
        (OperationTooLarge("a claim"), OperationTooLarge, "a claim"),
        (MethodUnknown("no method x"), MethodUnknown, "no method x"),
        (StorageFailed("disk"), OutcomeUnknown, "disk"),
    ],
)
def test_an_error_arrives_as_itself(raised: CodeqError, kind: type[CodeqError], text: str) -> None:
    """Kind and text survive; an error without a code of its own leaves the outcome unknown."""
    failure = bundled(failure_item(1, raised))

    assert isinstance(failure, Failure)
    assert (kind, text) == (type(failure.error), str(failure.error))
    assert getattr(raised, "hint", None) == getattr(failure.error, "hint", None)
    assert getattr(raised, "retry_after_s", None) == getattr(failure.error, "retry_after_s", None)


@pytest.mark.parametrize(
    "value",
    [
        [],
        [True],
        [0],
        [0, 1],
        [9],
        [-1],
        ["1", 0, b""],
        [1, 2],
        [1, -1, b""],
        [1, True, b""],
        [1, 0, []],
        [1, 0, {}],
        [2, 1, "m", 1, b""],
        [2, 1, "m", 0.0, b""],
        [2, 1, "m", -1.0, b""],
        [2, 1, "m", math.nan, b""],
        [2, 1, "m", math.inf, b""],
        [2, 1, "m" * 65, 1.0, b""],
        [2, 1, b"m", 1.0, b""],
        [2, "1", "m", 1.0, b""],
        [2, 1, "m", 1.0, None],
        [3, -1, b""],
        [3, 1],
        [3, 1, None],
        [4, 1, 7, "", 0],
        [4, 1, "overloaded", "x", 0],
        [4, 1, "not-leader", 5, 0],
        [4, 1, "no-leader", "", 1.5],
        [4, 1, ["no-leader"], "", 1],
    ],
)
def test_a_message_outside_the_schema_is_refused(value: list[object]) -> None:
    """Every field has one type and one range."""
    with pytest.raises(FrameRefusedError, match=BadFrame.SCHEMA):
        bundled(value)


@pytest.mark.parametrize("value", [None, {}, "ping", 0, [None], [0], [{}], ["ping"]])
def test_a_frame_that_is_no_bundle_is_refused(value: object) -> None:
    """A bundle is a list of lists."""
    with pytest.raises(FrameRefusedError, match=BadFrame.GARBAGE):
        parse_bundle(pack(value))


def test_a_later_releases_error_leaves_the_outcome_unknown() -> None:
    """Its code is unknown here, and so is the effect of the call."""
    failure = bundled([4, 1, "too-modern", "for you", 0])

    assert isinstance(failure, Failure)
    assert isinstance(failure.error, OutcomeUnknown)
    assert "too-modern: for you" == str(failure.error)


@given(data=st.binary(max_size=200))
def test_parsing_any_bytes_ends_in_a_message_or_a_refusal(data: bytes) -> None:
    """The parser raises nothing but its refusal."""
    with suppress(FrameRefusedError):
        parse_bundle(data)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node-1:18080", Address("node-1", 18080)),
        ("127.0.0.1:1", Address("127.0.0.1", 1)),
        ("[::1]:65535", Address("::1", 65535)),
        ("[fe80::1%eth0]:7000", Address("fe80::1%eth0", 7000)),
        ("n1.cluster.local.:7000", Address("n1.cluster.local.", 7000)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: Address) -> None:
    """Names, IPv4 and bracketed IPv6 addresses are read."""
    assert address == Address.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "node", "node:", ":1", "node:0", "node:65536", "node:+1", "n:\u00b2"),
        *("::1:7000", "[n1:7000", "a b:1", "a/b:1", "a=b:1", "a,b:1", "[]:1"),
    ],
)
def test_an_address_of_another_form_is_refused_by_name(text: str) -> None:
    """The error names the text."""
    with pytest.raises(ConfigInvalid, match=r"must be host:port"):
        Address.parse(text)


def test_refusals_are_counted_all_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A persistent stranger fills the counters, but neither the log nor the memory."""
    counters = LinkCounters()
    for _ in range(3):
        counters.refuse(HandshakeRefusal.STRANGER, address="10.0.0.9")
        counters.reject(BadFrame.GARBAGE, address="10.0.0.9")

    assert 3 == counters.refused_handshakes["stranger"]
    assert 3 == counters.bad_frames["garbage"]
    assert 2 == len(caplog.records)


def test_logged_refusals_are_remembered_within_a_bound() -> None:
    """Many addresses push the oldest out."""
    counters = LinkCounters()
    for number in range(3000):
        counters.reject(BadFrame.GARBAGE, address=f"host-{number}")

    assert 1000 == len(counters._logged)
