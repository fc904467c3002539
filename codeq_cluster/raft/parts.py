"""Parts: the parts of a group, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from codeq_cluster.codec.membership import Membership, data_of
from codeq_cluster.raft.append_sender import AppendSender
from codeq_cluster.raft.applier import Applier
from codeq_cluster.raft.changes import Changes
from codeq_cluster.raft.divergence import Divergence
from codeq_cluster.raft.elections import Campaign, Elections
from codeq_cluster.raft.followers import Followers
from codeq_cluster.raft.following import Following
from codeq_cluster.raft.guard import Guard
from codeq_cluster.raft.inbox import Inbox
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.leader import Leader
from codeq_cluster.raft.links import Links
from codeq_cluster.raft.outbox import Outbox
from codeq_cluster.raft.ports import Events, Ports
from codeq_cluster.raft.pre_votes import PreVotes
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.replica import Context, Replica
from codeq_cluster.raft.role import Role
from codeq_cluster.raft.roster import InitialMembers, Roster
from codeq_cluster.raft.safe_syncobj import Host, SafeSyncObj
from codeq_cluster.raft.schedule import Schedule
from codeq_cluster.raft.state_digests import Digests
from codeq_cluster.raft.voters import Voters

# Batches that may wait for a slow flush, over all peers.
_INBOX_BATCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingParts:
    """The parts of a group that continue when its store is swapped.

    They hold facts about peers and callers, never about the content of the log.
    """

    context: Context
    ports: Ports
    events: Events
    initial_members: InitialMembers
    inbox: Inbox
    outbox: Outbox
    links: Links
    voters: Voters
    elections: Elections
    read_index: ReadIndex
    changes: Changes
    role: Role
    schedule: Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedParts:
    """The parts of a group that begin with a loaded log, and end with it."""

    replica: Replica
    guard: Guard
    leader: Leader
    roster: Roster
    pre_votes: PreVotes
    campaign: Campaign
    following: Following


def lasting_parts(
    context: Context,
    *,
    bootstrap: Membership,
    ports: Ports,
    events: Events,
    turn: Callable[[], None],
    due: Callable[[], float],
    on_end: Callable[[], None],
) -> LastingParts:
    """Make the parts that last.

    Args:
        context: Which replica this is.
        bootstrap: The members for as long as the log names none.
        ports: The surroundings.
        events: Callbacks for the node.
        turn: Takes a turn.
        due: Returns when the next turn is due at the latest.
        on_end: Called when a leadership of this replica is over.
    """
    settings, rules = context.settings, context.rules
    voters = Voters(
        node_id=context.node_id, shard=context.shard, own_data=data_of(context.incarnation)
    )
    elections = Elections(
        node_id=context.node_id,
        voters=voters,
        election_ms=settings.election_ms,
        random=ports.random,
    )
    return LastingParts(
        context=context,
        ports=ports,
        events=events,
        initial_members=InitialMembers(bootstrap),
        inbox=Inbox(
            bytes_max=_INBOX_BATCHES * settings.append_bytes_max,
            counters=context.counters,
            fresh_only=rules.fresh_only,
        ),
        outbox=Outbox(
            link=ports.link,
            incarnation=context.incarnation,
            counters=context.counters,
            hold_promises=rules.hold_promises,
        ),
        links=Links(),
        voters=voters,
        elections=elections,
        read_index=ReadIndex(voters),
        changes=Changes(voters, node_id=context.node_id, rules=rules),
        role=Role(shard=context.shard, source=ports.source, elections=elections, on_end=on_end),
        schedule=Schedule(ports.timers, turn_s=settings.turn_ms / 1000, turn=turn, due=due),
    )


def started_parts(lasting: LastingParts, journal: Journal) -> StartedParts:
    """Make the parts that begin with a loaded log, on the membership in force."""
    divergence = Divergence(lasting.voters, shard=lasting.context.shard)
    digests, campaign = Digests(), Campaign()
    followers, following = Followers(), Following()
    replica = _replica(lasting, journal, divergence, digests)
    leader = Leader(
        replica,
        source=lasting.ports.source,
        read_index=lasting.read_index,
        changes=lasting.changes,
        followers=followers,
        following=following,
        again=lasting.schedule.want_another,
    )
    started = StartedParts(
        replica=replica,
        guard=Guard(
            replica,
            elections=lasting.elections,
            campaign=campaign,
            read_index=lasting.read_index,
            digests=digests,
            followers=followers,
            following=following,
        ),
        leader=leader,
        roster=Roster(
            replica,
            initial_members=lasting.initial_members,
            read_index=lasting.read_index,
            elections=lasting.elections,
            on_members=lasting.events.on_members,
        ),
        pre_votes=PreVotes(
            replica, role=lasting.role, elections=lasting.elections, campaign=campaign
        ),
        campaign=campaign,
        following=following,
    )
    appends = AppendSender(
        replica, read_index=lasting.read_index, followers=followers, following=following
    )
    replica.engine.attach(
        Host(
            send=started.guard.translate,
            append=appends.send,
            apply=replica.applier.apply,
            take=leader.take,
            take_members=leader.take_members,
        )
    )
    return started


def _replica(
    lasting: LastingParts, journal: Journal, divergence: Divergence, digests: Digests
) -> Replica:
    context, machine = lasting.context, lasting.ports.machine
    applier = Applier(
        shard=context.shard,
        journal=journal,
        machine=machine,
        digests=digests,
        divergence=divergence,
        rules=context.rules,
    )
    engine = SafeSyncObj(
        node_id=context.node_id,
        voters=lasting.voters,
        journal=journal,
        applied=applier.index,
        settings=context.settings,
        now=context.now,
    )
    for peer in lasting.links.connected:
        engine.connect(peer)
    return Replica(
        context=context,
        voters=lasting.voters,
        links=lasting.links,
        outbox=lasting.outbox,
        journal=journal,
        engine=engine,
        machine=machine,
        applier=applier,
        divergence=divergence,
    )
