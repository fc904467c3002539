"""Messages: the protocol between the nodes of a group, validated field by field.

On the wire each message is a map of short strings to integers, booleans, bytes and lists of these.
The library's own snapshots, forwarded commands, transmission of oversized entries and utility
commands have no message here, so nobody can send them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from codeq_cluster.codec import membership

# The first byte of a command is its kind; the library writes the second kind by itself.
PAYLOAD = b"\x00"
NO_OP = b"\x01"
MEMBERS = b"\x02"
# Far beyond any log's length, and exact in every language that might read a capture.
_NUMBER_MAX = 2**53
_DIGEST_BYTES = 16
# Bounds a batch of empty entries, which could otherwise have millions of list items.
ENTRIES_MAX = 4096

# An incarnation carries the data's identity in its upper half, so it may take all 64 bits.
_INCARNATION_MAX = 2**64 - 1

_Number = Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
# The schema's own bounds end at 63 bits; `parse` checks the rest.
_Incarnation = Annotated[int, Meta(ge=0)]
_Digest = Annotated[bytes, Meta(max_length=_DIGEST_BYTES)]


class _Message(Struct, kw_only=True, tag_field="t", forbid_unknown_fields=True):
    """The fields of every message.

    Attributes:
        incarnation: Grows with each start of the sender's process.
        seq: Grows with each message from this sender to this peer.
        term: The sender's current term, unless the message says otherwise.
    """

    incarnation: _Incarnation = msgspec.field(name="i", default=0)
    seq: _Number = msgspec.field(name="s", default=0)
    term: _Number = msgspec.field(name="e")


class Append(_Message, kw_only=True, tag=1):
    """The leader is alive, and these entries follow entry `prev`.

    Attributes:
        prev: Index of the entry before the first.
        terms: One per entry, ascending.
        commands: One per entry: a type byte, then the payload.
        floor: Every voter holds the log up to here, so it may be trimmed.
        round: Number of the leader's quorum round.
        applied: Index of the leader's state; `digest` is that state's.
        quiet: Only a refusal needs an answer.
    """

    prev: _Number = msgspec.field(name="p")
    prev_term: _Number = msgspec.field(name="pt")
    commit: _Number = msgspec.field(name="c")
    terms: Annotated[list[_Number], Meta(max_length=ENTRIES_MAX)] = msgspec.field(name="et")
    commands: Annotated[list[bytes], Meta(max_length=ENTRIES_MAX)] = msgspec.field(name="ec")
    floor: _Number = msgspec.field(name="f")
    round: _Number = msgspec.field(name="r")
    applied: _Number = msgspec.field(name="a")
    digest: _Digest = msgspec.field(name="d")
    quiet: bool = msgspec.field(name="y")


class Answer(_Message, kw_only=True, tag=2):
    """The follower's answer to an `Append`.

    Attributes:
        next: Index of the entry the follower wants next.
        success: The follower durably holds the leader's entries before `next`.
        reset: The leader must send again from `next`.
        of_incarnation: With `of_seq`, the message that is answered.
        awaited: A caller on the follower's node waits for entries to be applied there.
    """

    next: _Number = msgspec.field(name="n")
    success: bool = msgspec.field(name="ok")
    reset: bool = msgspec.field(name="x")
    of_incarnation: _Incarnation = msgspec.field(name="oi")
    of_seq: _Number = msgspec.field(name="os")
    round: _Number = msgspec.field(name="r")
    applied: _Number = msgspec.field(name="a")
    digest: _Digest = msgspec.field(name="d")
    awaited: bool = msgspec.field(name="w")


class VoteRequest(_Message, kw_only=True, tag=3):
    """Vote for me in `term`.

    Attributes:
        transfer: The leader itself asked the sender to start this election.
    """

    last: _Number = msgspec.field(name="l")
    last_term: _Number = msgspec.field(name="lt")
    transfer: bool = msgspec.field(name="x")


class Vote(_Message, kw_only=True, tag=4):
    """You have my vote in `term`."""


class PreVoteRequest(_Message, kw_only=True, tag=5):
    """Ask whether the peer would vote for the sender in `term`, one past its own."""

    last: _Number = msgspec.field(name="l")
    last_term: _Number = msgspec.field(name="lt")


class PreVote(_Message, kw_only=True, tag=6):
    """The answer to a pre-vote request.

    Attributes:
        term: The voter's own current term.
        asked: The term that was asked about.
    """

    asked: _Number = msgspec.field(name="q")
    granted: bool = msgspec.field(name="ok")


class TimeoutNow(_Message, kw_only=True, tag=7):
    """Start an election at once: your leader transfers its leadership to you."""


class TermHint(_Message, kw_only=True, tag=8):
    """Your term is over; mine is `term`."""


class Behind(_Message, kw_only=True, tag=9):
    """The entry you need next is gone from my log: you need a snapshot.

    Attributes:
        first: Index of the oldest entry the leader has.
    """

    first: _Number = msgspec.field(name="f")


class Diverged(_Message, kw_only=True, tag=10):
    """Your state differs from the majority's: a snapshot must replace it.

    Attributes:
        index: The index at which your state differed.
        digest: Your digest there. A state with another digest has been replaced since.
    """

    index: _Number = msgspec.field(name="a")
    digest: _Digest = msgspec.field(name="d")


class Beat(_Message, kw_only=True, tag=11):
    """I still lead these groups, which rest; my other groups speak for themselves.

    It is of the node, so `term` is 0. It also answers the receiver's last beat.

    Attributes:
        led: Shard and term of each group.
        of_incarnation: With `of_seq`, the receiver's last beat.
        refused: Shards of that beat which the sender does not follow at rest.
    """

    led: Annotated[list[tuple[_Number, _Number]], Meta(max_length=ENTRIES_MAX)] = msgspec.field(
        name="l"
    )
    of_incarnation: _Incarnation = msgspec.field(name="oi")
    of_seq: _Number = msgspec.field(name="os")
    refused: Annotated[list[_Number], Meta(max_length=ENTRIES_MAX)] = msgspec.field(name="x")


Message = (
    Append
    | Answer
    | VoteRequest
    | Vote
    | PreVoteRequest
    | PreVote
    | TimeoutNow
    | TermHint
    | Behind
    | Diverged
    | Beat
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def parse(raw: bytes) -> Message:
    """Return the message in these packed bytes from the wire.

    Raises:
        ValueError: A field is missing, unknown, of the wrong type or out of range.
    """
    message: Message = _decode(raw)
    if message.incarnation > _INCARNATION_MAX:
        raise ValueError("an incarnation of more than 64 bits")
    if isinstance(message, Append):
        _check_entries(message)
    return message


def render(message: Message, *, incarnation: int, seq: int) -> bytes:
    """Stamp the message, and return it as the wire carries it."""
    message.incarnation = incarnation
    message.seq = seq
    return _encode(message)


def _check_entries(message: Append) -> None:
    if len(message.terms) != len(message.commands):
        raise ValueError("an entry without a term or a term without an entry")
    if message.prev == 0:
        raise ValueError("there is no entry 0 to follow")
    before = message.prev_term
    for term, command in zip(message.terms, message.commands, strict=True):
        if not before <= term <= message.term:
            raise ValueError("terms that do not ascend to the sender's own")
        if command[:1] == MEMBERS:
            membership.decode(command[1:])
        elif command[:1] not in (PAYLOAD, NO_OP):
            raise ValueError("an entry of a kind this group never writes")
        before = term
