"""Membership: the nodes of a shard's group, as entries of its log and snapshots carry them.

The format is a version byte, then MessagePack:

    [[[id, data, voter, link, http, level], ...], level, [data, ...]]
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
from msgspec import Struct

# An id names directories, metrics labels and peers on the link.
NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

# A name or an address, IPv6 in brackets.
_HOST = (
    r"([A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?"
    r"|\[[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,16})?\])"
)
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"

# The address of a node's link, and that of its HTTP port. Configured links, the membership routes
# and the OpenAPI document all go by these.
ADDRESS = re.compile(f"{_HOST}:{_PORT}")
HTTP_ADDRESS = re.compile(f"https?://{_HOST}(:{_PORT})?/?")
ADDRESS_ALLOWED = "host:port, the port 1 to 65535"

# Far more than a useful Raft group; bounds the memory that a damaged row can demand.
MEMBERS_MAX = 64

# Data that recoveries continued without: only a few of these, ever.
PAST_MAX = 256

_VERSION = 1
_DATA_BITS = 32


class Member(Struct, frozen=True, array_like=True, kw_only=True):
    """One node.

    Attributes:
        data: Random identity of its data, drawn when the data was made; 0 until the node is first
            heard.
        voter: It counts for a majority; a learner only receives the log.
        link: Where its peers reach it, host:port.
        http: Where callers reach it, host:port.
        level: The newest level of formats that it knows.
    """

    id: str
    data: int = 0
    voter: bool = True
    link: str = ""
    http: str = ""
    level: int = 1


class Membership(Struct, frozen=True, array_like=True, kw_only=True):
    """All nodes of a group, in the order in which they joined; none before its bootstrap.

    Attributes:
        level: Of the formats in use: every member knows them.
        past: Identities of the data that `cluster recover` continued without; that data may have
            another history.
    """

    members: tuple[Member, ...] = ()
    level: int = 1
    past: tuple[int, ...] = ()

    @property
    def voters(self) -> tuple[str, ...]:
        """Return the ids of the members that count for a majority."""
        return tuple(member.id for member in self.members if member.voter)

    def of(self, node_id: str) -> Member | None:
        """Return the member of that id, or None."""
        return next((member for member in self.members if member.id == node_id), None)

    def with_member(self, member: Member) -> Membership:
        """Return the membership with this member added, or replaced if its id is there."""
        if self.of(member.id) is None:
            return msgspec.structs.replace(self, members=(*self.members, member))
        return msgspec.structs.replace(
            self, members=tuple(member if m.id == member.id else m for m in self.members)
        )

    def without(self, node_id: str) -> Membership:
        """Return the membership without that node."""
        return msgspec.structs.replace(
            self, members=tuple(member for member in self.members if member.id != node_id)
        )


@lru_cache
def data_of(incarnation: int) -> int:
    """Return the identity of the data on which a process of that incarnation runs."""
    return incarnation >> _DATA_BITS


def incarnation_of(data: int, opened: int) -> int:
    """Return the number of this opening of this data; it grows with each opening."""
    return data << _DATA_BITS | opened


def encode(membership: Membership) -> bytes:
    """Return the membership as a log entry carries it."""
    return bytes((_VERSION,)) + msgspec.msgpack.encode(membership)


def decode(payload: bytes) -> Membership:
    """Return the membership in a payload.

    Raises:
        ValueError: The payload has another version, is damaged, or no group can have it.
    """
    if payload[:1] != bytes((_VERSION,)):
        raise ValueError(f"a membership of version {payload[:1].hex() or 'none'}, expected 01")
    membership = msgspec.msgpack.decode(payload[1:], type=Membership)
    ids = {member.id for member in membership.members}
    if len(ids) != len(membership.members) or len(ids) > MEMBERS_MAX or "" in ids:
        raise ValueError("a membership that names a node twice, none or too many")
    if len(membership.past) > PAST_MAX:
        raise ValueError("a membership after too many recoveries")
    if ids and not membership.voters:
        raise ValueError("a membership without a voter")
    return membership
