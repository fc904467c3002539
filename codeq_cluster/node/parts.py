"""Parts: what a node is made of, put together and not yet started."""

from __future__ import annotations

from dataclasses import dataclass

from codeq_cluster.membership.node_view import NodeMembers
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.cluster_calls import ClusterCalls
from codeq_cluster.node.drain import Drain
from codeq_cluster.node.node_certificates import NodeCertificates
from codeq_cluster.node.open_storage import OpenStorage, open_storage
from codeq_cluster.node.readiness import Readiness
from codeq_cluster.node.recovery import Recovery
from codeq_cluster.node.replica_events import ReplicaEvents
from codeq_cluster.node.replicas import Replicas
from codeq_cluster.node.status import NodeStatus
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.wire import Mesh
from codeq_cluster.wire.handshake import LinkIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """The parts that work whether or not there are callers."""

    storage: OpenStorage
    mesh: Mesh
    replicas: Replicas
    members: NodeMembers
    drain: Drain
    recovery: Recovery
    calls: ClusterCalls
    readiness: Readiness
    status: NodeStatus


def put_together(base: NodeBase, certificates: NodeCertificates) -> NodeParts:
    """Open the storage, and make each part of those before it; nothing runs yet.

    Raises:
        DataDirectoryRefused: The data is another node's, another cluster's, locked or damaged.
        ReleaseTooOld: The data has formats that this release does not know.
    """
    settings = base.settings
    events = ReplicaEvents()
    storage = open_storage(base, on_failed=events.failed)
    mesh = _mesh(base, storage, certificates)
    replicas = Replicas(base, storage, mesh, events)
    leaders = Leaders(
        replicas.engines,
        # A paused leader, or one behind a silent cut, stops answering while its connection stays
        # up. The other nodes then elect a new leader: end the calls to the old one.
        replaced=lambda shard, leader: mesh.give_up(leader, shard),
    )
    members = NodeMembers(
        settings,
        storage.directory,
        groups=replicas.groups,
        leaders=leaders,
        mesh=mesh,
    )
    events.on_members = members.changed
    drain = Drain(node_id=settings.node_id, groups=replicas.groups, replicas=replicas.engines)
    recovery = Recovery(
        base, storage, replicas, mesh=mesh, members=members, drain=drain, events=events
    )
    leaders.ask_peers(while_out=recovery.is_out, peers=members.connected)
    calls = ClusterCalls(base, replicas, leaders, mesh=mesh, members=members, recovery=recovery)
    readiness = Readiness(
        groups=replicas.groups,
        members=members,
        disk_guard=recovery.disk_guard,
        entries_in_flight_max=settings.raft.entries_in_flight_max,
    )
    status = NodeStatus(settings, storage, replicas, members=members, calls=calls)
    return NodeParts(
        storage=storage,
        mesh=mesh,
        replicas=replicas,
        members=members,
        drain=drain,
        recovery=recovery,
        calls=calls,
        readiness=readiness,
        status=status,
    )


def _mesh(base: NodeBase, storage: OpenStorage, certificates: NodeCertificates) -> Mesh:
    settings = base.settings
    links = {peer.id: peer.link for peer in settings.peers}
    identity = LinkIdentity(
        node_id=settings.node_id,
        cluster_id=settings.cluster_id,
        incarnation=storage.directory.incarnation,
        secret=settings.cluster_secret.encode(),
        address=links.pop(settings.node_id),
        shards=settings.shards,
    )
    return Mesh(
        identity,
        peers=links,
        host=settings.link_host,
        port=settings.link_port,
        settings=settings.link,
        certificates=certificates.link,
    )
