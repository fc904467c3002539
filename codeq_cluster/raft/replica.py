"""Replica: one shard's member on this node, with all its parts; each part is given the whole."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from codeq_cluster.codec import levels
from codeq_cluster.codec.membership import Membership, data_of
from codeq_cluster.raft.elections import Campaign, Elections
from codeq_cluster.raft.journal import TRIM_ENTRIES, Journal
from codeq_cluster.raft.mailbox import Inbox, Outbox
from codeq_cluster.raft.members import Changes, Followers, Links, Voters
from codeq_cluster.raft.ports import Events, Ports
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.safe_syncobj import SafeSyncObj
from codeq_cluster.raft.safety_switches import SafetySwitches
from codeq_cluster.raft.schedule import Schedule
from codeq_cluster.raft.state import Applier, Digests, Divergence
from codeq_cluster.settings import RaftSettings

_log = logging.getLogger(__name__)

# Batches that may wait for a slow flush, over all peers.
_INBOX_BATCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaId:
    """Which replica of which shard this is.

    Attributes:
        shard: Number of the shard, for logs and status.
        incarnation: Grows durably with each start on the same data; 1 to 2^64 - 1.
        level: The newest format version this node knows; it does not serve a group that uses a
            newer one.
    """

    shard: int
    node_id: str
    incarnation: int
    level: int = levels.LEVEL


class Replica:
    """One replica: its place in the group, its surroundings, and its parts.

    Some parts last as long as the process. They hold facts about peers and callers, never about the
    content of the log. `load` makes the others from the log on disk. A group that resumes on an
    exchanged store loads again, so that nothing which they remember of the old log or state
    outlives it.

    Attributes:
        shard, node_id, incarnation, level: See `ReplicaId`.
        rules: Production has them all.
        machine: The state that the log drives.
        events: Callbacks for the node.
        now: Returns monotonic seconds.
        counters: Of dropped and refused messages and other rare events, by reason.
        schedule: When the next turn is taken.
        election_s: A peer that answered within this time is alive.
        leader_changes: How often the known leader changed, including to none.
        initial_members: The members for as long as the log names none; empty for a node that waits
            for a bootstrap, or to be added by a leader.
        wanted_members: The bootstrap that the next turn carries out.
        links: To which peers there is a connection.
        inbox, outbox: The messages from the peers, and to them.
        read_index: The reads that wait for proof of this leadership.
        changes: The membership change under way.
        journal: The log on this node's disk.
        named_members: The membership in force, as the log names it.
        engine: The library's Raft state on that log.
        divergence: Which voters have another state.
        applier: Brings entries from the log into the state.
        followers: What this node as leader remembers of its followers' answers.
        campaign: The election that this node is about to start, or has started last.
        floor: The log may be trimmed up to here.
        trim_waits: At this follower's last turn, its stored state lacked entries up to `floor`.
        known_commit: The highest commit index that a leader has reported.
        behind: A leader has said since the last turn that it lacks the entries this replica needs.
    """

    def __init__(
        self,
        identity: ReplicaId,
        *,
        initial_members: Membership,
        ports: Ports,
        events: Events,
        settings: RaftSettings,
        rules: SafetySwitches,
        schedule: Schedule,
    ) -> None:
        """Make the parts that last; `load` makes the others."""
        self.shard = identity.shard
        self.node_id = identity.node_id
        self.incarnation = identity.incarnation
        self.level = identity.level
        self.settings = settings
        self.rules = rules
        self.ports = ports
        self.machine = ports.machine
        self.events = events
        self.now = ports.timers.now
        self.counters: Counter[str] = Counter()
        self.election_s = settings.election_ms / 1000
        self.schedule = schedule
        self.leader_changes = 0
        self.initial_members = initial_members
        self.wanted_members: Membership | None = None
        self.voters = Voters(
            node_id=self.node_id, shard=self.shard, own_data=data_of(self.incarnation)
        )
        self.elections = Elections(
            node_id=self.node_id,
            voters=self.voters,
            election_ms=settings.election_ms,
            random=ports.random,
        )
        self.links = Links()
        self.inbox = Inbox(
            bytes_max=_INBOX_BATCHES * settings.append_bytes_max,
            counters=self.counters,
            fresh_only=rules.fresh_only,
        )
        self.outbox = Outbox(
            link=ports.link,
            incarnation=self.incarnation,
            counters=self.counters,
            hold_promises=rules.hold_promises,
        )
        self.read_index = ReadIndex(self.voters)
        self.changes = Changes(self.voters, node_id=self.node_id, rules=rules)

    def load(self) -> None:
        """Load and check the log, and make the parts that begin with it.

        Raises:
            DataDirectoryRefused: Log and state are damaged or do not fit.
            ReleaseTooOld: The group uses formats that this node does not know.
        """
        settings, machine = self.settings, self.machine
        self.journal = journal = Journal(
            self.ports.store,
            cache_bytes_max=settings.cache_bytes_max,
            keep_committed=self.rules.keep_committed,
            # A log with a small bound would exceed it by more than the bound itself.
            trim_entries=min(TRIM_ENTRIES, max(1, settings.log_entries_max // 4)),
        )
        journal.load(
            applied=machine.applied_index,
            committed=machine.seen_index,
            bootstrap=self.initial_members if self.initial_members.members else None,
        )
        self.named_members = journal.memberships.newest
        index, membership = self.named_members
        self._check_level(membership)
        self.voters.adopt(index, membership)
        self.digests = Digests()
        self.divergence = Divergence(self.voters, shard=self.shard)
        self.applier = Applier(
            shard=self.shard,
            journal=journal,
            machine=machine,
            digests=self.digests,
            divergence=self.divergence,
            rules=self.rules,
        )
        self.engine = SafeSyncObj(
            node_id=self.node_id,
            voters=self.voters,
            journal=journal,
            settings=settings,
            now=self.now,
            beat=self.ports.beat,
        )
        for peer in self.links.connected:
            self.engine.connect(peer)
        self.followers = Followers()
        self.campaign = Campaign()
        self.floor = 0
        self.trim_waits = False
        self.known_commit = 0
        self.behind = False

    # Members.

    def bootstrap(self) -> None:
        """Begin the log with the members that were asked for, unless it has members already."""
        membership, self.wanted_members = self.wanted_members, None
        if membership is not None and not self.voters.membership.members:
            self.journal.bootstrap(membership)
            self.initial_members = membership
            self.follow_members()

    def follow_members(self) -> None:
        """Put the newest membership in the log in force, committed or not.

        Nothing acts on a membership before every part has it: library, reads and timer.

        Raises:
            ReleaseTooOld: It uses formats that this node does not know.
        """
        index, membership = named = self.journal.memberships.newest
        self._check_level(membership)
        self.named_members = named
        voters = self.voters
        voting = voters.voting
        voters.adopt(index, membership)
        self.engine.adopt_members()
        self.read_index.recount()
        _log.info(
            "members changed",
            extra={
                "shard": self.shard,
                "index": index,
                "formats": membership.level,
                "members": [
                    member.id if member.voter else f"{member.id} (learner)"
                    for member in membership.members
                ],
            },
        )
        if voters.voting and not voting:
            self.elections.start(self.now())
        self.events.on_members()

    def _check_level(self, membership: Membership) -> None:
        levels.check(membership.level, by=f"shard {self.shard}", known=self.level)
