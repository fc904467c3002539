"""Counters: the link's counts since the node started, for the metrics."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from codeq_cluster.wire.refusals import BadFrame, HandshakeRefusal

log = logging.getLogger(__name__)

# The remedy for a refused node's operator, by the other side's reason.
_REMEDIES = {
    HandshakeRefusal.STRANGER.value: "let this node in with `codeq-cluster cluster join`",
    HandshakeRefusal.LIVES.value: "a node of this id is running on other data: stop one of the "
    "two, or give this one another id",
    HandshakeRefusal.RECOVERED.value: "the cluster was recovered without this node's data: stop "
    "it, empty its data directory, and start it again",
    HandshakeRefusal.CLUSTER.value: "the other side is of another cluster: compare clusterId",
    HandshakeRefusal.SHARDS.value: "the other side has another number of shards: compare "
    "persistenceConfig.numShards; a node that joins needs the cluster's, and an empty data "
    "directory",
    HandshakeRefusal.PROOF.value: "compare the cluster secret of both nodes",
    HandshakeRefusal.VERSION.value: "the releases of the two nodes are too far apart",
}

# The remedies that also fit this side's own reason.
_OWN_REMEDIES = {
    reason: _REMEDIES[reason.value]
    for reason in (
        HandshakeRefusal.CLUSTER,
        HandshakeRefusal.SHARDS,
        HandshakeRefusal.PROOF,
        HandshakeRefusal.VERSION,
    )
}


def remedy(reason: HandshakeRefusal, said: str) -> str:
    """Return the remedy when two nodes do not become peers; empty if unknown.

    Args:
        reason: This side's reason.
        said: The other side's reason; empty when this side refused.
    """
    return _REMEDIES.get(said) or _OWN_REMEDIES.get(reason, "")


# Each (address, reason) is logged once while it is among this many latest: 1,000 x ~100 bytes.
_LOGGED_MAX: Final = 1000


@dataclass(slots=True)
class LinkCounters:
    """The running counters; owned by one mesh and changed only on its loop.

    Attributes:
        refused_handshakes: By reason; every reason is present.
        bad_frames: By reason; every reason is present.
        silent_connections: Connections given up because nothing came for too long.
        dropped_messages: Raft messages not queued: no connection, or its queue was full.
        dropped_answers: RPC answers whose connection was gone or full.
        frames_out: Authenticated ones.
        calls: RPC requests sent.
        calls_lost: Calls ended by a broken connection or by their timeout.
        calls_served: RPC requests handed to the handler.
    """

    refused_handshakes: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((each.value for each in HandshakeRefusal), 0)
    )
    bad_frames: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((each.value for each in BadFrame), 0)
    )
    silent_connections: int = 0
    dropped_messages: int = 0
    dropped_answers: int = 0
    frames_out: int = 0
    calls: int = 0
    calls_lost: int = 0
    calls_served: int = 0
    _logged: OrderedDict[tuple[str, str], None] = field(default_factory=OrderedDict)

    def refuse(
        self,
        reason: HandshakeRefusal,
        *,
        address: str,
        peer: str = "",
        said: str = "",
        detail: str = "",
    ) -> None:
        """Count a failed handshake, and log it when it is new.

        Args:
            address: Host of the other side, without its port.
            peer: Id of the node this side dialled; empty for an accepted connection.
            said: The other side's reason.
        """
        self.refused_handshakes[reason] += 1
        if self._is_new(address, said or reason.value):
            log.warning(
                "link handshake failed",
                extra={
                    "address": address,
                    "peer": peer,
                    "reason": said or reason.value,
                    "detail": detail,
                    "remedy": remedy(reason, said),
                },
            )

    def reject(self, reason: BadFrame, *, address: str, peer: str = "") -> None:
        """Count bytes that closed a connection, and log them when they are new."""
        self.bad_frames[reason] += 1
        if self._is_new(address, reason.value):
            log.warning(
                "link closed on a bad frame",
                extra={"address": address, "peer": peer, "reason": reason.value},
            )

    def _is_new(self, address: str, reason: str) -> bool:
        key = (address, reason)
        if key in self._logged:
            self._logged.move_to_end(key)
            return False
        self._logged[key] = None
        if len(self._logged) > _LOGGED_MAX:
            self._logged.popitem(last=False)
        return True
