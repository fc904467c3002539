"""Rest: one beat to each peer for all groups of a node that have nothing to do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.mailbox import Inbox, Outbox
from codeq_cluster.raft.messages import Beat as Said
from codeq_cluster.raft.ports import Beat, Link, Timers

# The link's number for what nodes say, not groups; no shard has it.
NODE: Final = 2**32
# Groups are roused after this many periods of silence; their timeouts, of at least 3 periods, count
# from its beginning. An answer waits for the peer's own beat, up to a period.
SILENT_PERIODS = 2.5


@dataclass(slots=True)
class _Peer:
    """What is known of a peer's beats.

    Attributes:
        heard: Stamp of its last one: incarnation and number.
        heard_at: When it came.
        answered: Number of this node's newest beat that it has answered.
        answered_at: When it did, or when this node began to ask.
        asked: The last beat to it named groups.
        follows: The groups here that rest under it, by shard.
        refused: Shards of its last beat that this node does not follow, until it is told.
    """

    heard: tuple[int, int] = (0, 0)
    heard_at: float = 0.0
    answered: int = 0
    answered_at: float = 0.0
    asked: bool = False
    follows: dict[int, RaftGroup] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)


class Rest:
    """The groups of one node at rest, led or followed.

    A leader's group rests when its followers know all that it could tell them. From then on the
    node's beat names it, with its term, and a follower that agrees keeps no timer of its own. A
    group that is no longer named is roused where it was followed; so is every group when the peer
    falls silent, at both ends. Nobody is promised anything by a beat: reads, votes and entries need
    messages of their own, and any turn of a leader rouses its group.
    """

    def __init__(
        self,
        groups: Sequence[RaftGroup],
        *,
        incarnation: int,
        period_s: float,
        link: Link,
        timers: Timers,
        beat: Beat,
    ) -> None:
        """Prepare; nothing happens until a group rests, here or at a peer.

        Args:
            groups: Of this node, in the order of shards.
            period_s: Seconds from one beat to the next.
            link: To the peers' `receive`.
        """
        self._groups = groups
        self._incarnation = incarnation
        self._period_s = period_s
        self._timers = timers
        self._beat = beat
        counters: Counter[str] = Counter()
        self._inbox = Inbox(bytes_max=0, counters=counters, fresh_only=True)
        self._outbox = Outbox(
            link=link, incarnation=incarnation, counters=counters, hold_promises=False
        )
        self._led: dict[int, RaftGroup] = {}
        self._peers: defaultdict[str, _Peer] = defaultdict(_Peer)
        self._is_armed = False

    def enter(self, shard: int) -> None:
        """Beat for a group that this node leads, for as long as it rests."""
        self._led[shard] = self._groups[shard]
        self._arm()

    def receive(self, peer: str, raw: bytes) -> None:
        """Take a peer's message; one that is malformed, late or no beat is dropped."""
        said = self._inbox.put(peer, raw)
        if said is None:
            return
        self._inbox.get()
        if not isinstance(said, Said):
            return
        known, now = self._peers[peer], self._timers.now()
        known.heard, known.heard_at = (said.incarnation, said.seq), now
        if said.of_incarnation == self._incarnation and said.of_seq > known.answered:
            known.answered, known.answered_at = said.of_seq, now
            for group in self._led.values():
                group.answered(peer, said.incarnation)
            for shard in self._led.keys() & said.refused:
                self._led.pop(shard).rouse()
        self._follow(peer, known, said.led)

    def _follow(self, peer: str, known: _Peer, led: Sequence[tuple[int, int]]) -> None:
        """Let the groups rest that the peer names, and rouse those that it no longer names."""
        before, known.follows, known.refused = known.follows, {}, []
        for shard, term in led:
            if shard < len(self._groups) and self._groups[shard].rest_under(peer, term):
                known.follows[shard] = self._groups[shard]
            else:
                known.refused.append(shard)
        for shard in before.keys() - known.follows.keys():
            before[shard].rouse()
        if led:
            self._arm()

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            now = self._timers.now()
            self._timers.call_later(self._beat.after(now, self._period_s, self) - now, self._tick)

    def _tick(self) -> None:
        """Rouse groups whose peer is silent, and beat for the others."""
        self._is_armed = False
        silent = self._timers.now() - SILENT_PERIODS * self._period_s
        for known in self._peers.values():
            if known.follows and known.heard_at < silent:
                follows, known.follows = known.follows, {}
                for group in follows.values():
                    group.rouse()
        led = self._named(silent)
        for peer, known in self._peers.items():
            self._say(peer, known, led.get(peer, []))
        if any(known.asked or known.follows for known in self._peers.values()):
            self._arm()

    def _named(self, silent: float) -> Mapping[str, list[tuple[int, int]]]:
        """Return what to name to each peer; rouse groups of which a peer has been silent since."""
        led: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for shard, group in list(self._led.items()):
            term, peers = group.rests_in, [(peer, self._peers[peer]) for peer in group.peers]
            if term is None:
                del self._led[shard]
            elif any(known.asked and known.answered_at < silent for _, known in peers):
                self._led.pop(shard).rouse()
            else:
                for peer, _ in peers:
                    led[peer].append((shard, term))
        return led

    def _say(self, peer: str, known: _Peer, led: list[tuple[int, int]]) -> None:
        """Send a peer a beat, unless it has nothing to learn."""
        if led and not known.asked:
            known.answered_at = self._timers.now()
        known.asked = bool(led)
        if led or known.follows or known.refused:
            incarnation, seq = known.heard
            refused, known.refused = known.refused, []
            said = Said(term=0, led=led, of_incarnation=incarnation, of_seq=seq, refused=refused)
            self._outbox.send(peer, said)
