"""Membership: the nodes of a shard's group, as entries of its log and snapshots carry them.

version byte, then MessagePack [[[id, data, voter, link, http, level], ...], level], and after a
recovery a third field: [data, ...]
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

# An id names directories, metrics labels and peers on the link.
NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

# Far more than a Raft group is good for; bounds what a damaged row can ask for.
MEMBERS_MAX = 64

# Of nodes that recoveries went on without: a few of these, ever.
PAST_MAX = 256

_VERSION = 1
_DATA_BITS = 32


class Member(Struct, frozen=True, array_like=True, kw_only=True):
    """One node.

    Attributes:
        data: Identity of its data, drawn when that was made; 0 until it has first been heard of.
        voter: It counts for a majority; a learner only receives the log.
        link: Where its peers reach it, host:port.
        http: Where callers reach it, host:port.
        level: The newest formats it knows.
    """

    id: str
    data: int = 0
    voter: bool = True
    link: str = ""
    http: str = ""
    level: int = 1


class Membership(Struct, frozen=True, array_like=True, kw_only=True):
    """All nodes of a group, in the order in which they joined; none before it is founded.

    Attributes:
        level: Of the formats in use: every member knows them.
        past: Identities of the data that `cluster recover` went on without: what they hold beyond
            that may be another history.
    """

    members: tuple[Member, ...] = ()
    level: int = 1
    past: tuple[int, ...] = ()

    @property
    def voters(self) -> tuple[str, ...]:
        """Return the ids of those who count for a majority."""
        return tuple(member.id for member in self.members if member.voter)

    def of(self, node_id: str) -> Member | None:
        """Return the member of that id."""
        return next((member for member in self.members if member.id == node_id), None)

    def with_member(self, member: Member) -> Membership:
        """Return the membership with the member in the place of the one of its id, or added."""
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


def data_of(incarnation: int) -> int:
    """Return the identity of the data that a process of that incarnation runs on."""
    return incarnation >> _DATA_BITS


def incarnation_of(data: int, opened: int) -> int:
    """Return what tells this opening of this data from every other; grows with each opening."""
    return data << _DATA_BITS | opened


def encode(membership: Membership) -> bytes:
    """Return the membership as a log entry carries it."""
    fields: list[object] = [membership.members, membership.level]
    if membership.past:
        fields.append(membership.past)
    return bytes((_VERSION,)) + msgspec.msgpack.encode(fields)


def decode(payload: bytes) -> Membership:
    """Read a membership.

    Raises:
        ValueError: Another version, damaged, or one that no group can have.
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
