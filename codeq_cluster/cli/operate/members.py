"""Members: the nodes of a cluster, as those that answer see each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

import msgspec
from msgspec import Struct

from codeq_cluster.cli.support.times import Times, instant


class _Peer(Struct, rename="camel"):
    id: str
    http_addr: str = ""
    connected: bool = False
    away_since: str = ""


class _Group(Struct, rename="camel"):
    self_id: str
    shard_idx: int = 0
    leader_id: str | None = None
    term: int = 0
    commit_index: int = 0
    self_http_addr: str = msgspec.field(name="selfHTTPAddr", default="")
    peers: tuple[_Peer, ...] = ()

    @property
    def names(self) -> set[str]:
        """Return the ids of the peers."""
        return {peer.id for peer in self.peers}

    def follows(self, other: _Group) -> bool:
        """Return whether this is of a later membership, in which the other's node is no member.

        The others then refuse that node, so it has no leader.
        """
        return (
            self.shard_idx == other.shard_idx
            and bool(self.leader_id)
            and not other.leader_id
            and self.self_id in other.names
            and other.self_id not in self.names
            and (self.term, self.commit_index) > (other.term, other.commit_index)
        )


class _Status(Struct):
    groups: tuple[_Group, ...] = ()


@dataclass(slots=True)
class Member:
    """A node of the cluster.

    Attributes:
        url: Its base URL, as the nodes know it; perhaps not reachable from here.
        reached_by: The nodes that are connected with it.
        away_since: Since when each of the other nodes cannot reach it; empty if it does not say.
        alone: It leads, and knows no other node.
    """

    id: str
    url: str = ""
    reached_by: set[str] = field(default_factory=set)
    away_since: dict[str, str] = field(default_factory=dict)
    alone: bool = False

    def away(self, times: Times) -> str:
        """Return which nodes cannot reach it and since when; empty if each of them can."""
        if not self.away_since:
            return ""
        nodes = " and ".join(sorted(self.away_since))
        since = instant(self.since)
        if isinstance(since, datetime):
            return f"{nodes} cannot reach it since {times.text(since)}"
        return f"{nodes} cannot reach it"

    @property
    def since(self) -> str:
        """Return since when a node cannot reach it; empty if none says so."""
        return min(filter(None, self.away_since.values()), default="")


def answered_as(status: object) -> str:
    """Return the id of the node that gave an answer of `GET /raft/status`; empty if it has none."""
    match status:
        case {"groups": [{"selfId": str(node)}, *_]}:
            return node
        case _:
            return ""


def owners(
    silent: Sequence[str], members: Mapping[str, Member], *, answered: Collection[str]
) -> Mapping[str, str]:
    """Return the ids of the members that addresses without an answer belong to, if that is plain.

    An address that no member gives, such as a forwarded port, is that of the only member that is
    away, unless there are more of either.

    Args:
        silent: The addresses, without a slash at the end.
        members: All that those who answered know of.
        answered: The ids of the members that answered, at whatever address.
    """
    at = {each.url.rstrip("/"): each.id for each in members.values() if each.url}
    found = {url: at[url] for url in silent if url in at}
    unknown = [url for url in silent if url not in at]
    named = {*answered, *found.values()}
    away = [each.id for each in members.values() if each.away_since and each.id not in named]
    if len(unknown) == len(away) == 1:
        found[unknown[0]] = away[0]
    return found


def strange(members: Mapping[str, Member], *, answered: Collection[str]) -> str:
    """Return what is known of an address without an answer and without an owner."""
    if not members:
        return ""
    candidates = " or ".join(each for each in members if each not in answered)
    return "no member gives this address" + (f"; it may be that of {candidates}" * bool(candidates))


def members_of(statuses: Iterable[object]) -> Mapping[str, Member]:
    """Return the members by id that answers of `GET /raft/status` name.

    An answer in another form names nobody: whoever asked for it reports that. A node that has been
    removed, or that a recovery went on without, names nobody either: the members refuse it, and
    some that it knows may be none any more.
    """
    found: dict[str, Member] = {}
    groups = list(chain.from_iterable(map(_groups, statuses)))
    for group in groups:
        own = found.setdefault(group.self_id, Member(group.self_id))
        own.url = group.self_http_addr
        own.alone = group.leader_id == group.self_id and not group.peers
        if any(each.follows(group) for each in groups):
            continue
        for peer in group.peers:
            member = found.setdefault(peer.id, Member(peer.id))
            member.url = member.url or peer.http_addr
            if peer.connected:
                member.reached_by.add(group.self_id)
            else:
                member.away_since[group.self_id] = peer.away_since
    return dict(sorted(found.items()))


def _groups(status: object) -> tuple[_Group, ...]:
    try:
        return msgspec.convert(status, _Status).groups
    except msgspec.ValidationError:
        return ()
