"""Unproved: the connections that have not proved themselves yet, few in number.

Nobody can prove an id before the handshake, so places are kept by source address. Connections from
the members' addresses and those of strangers do not compete. Among strangers an address has a
share. In both, the oldest goes and not the newest: otherwise those that only wait would keep the
places.
"""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.fair_shares import FairShares
from codeq_cluster.wire.addresses import site
from codeq_cluster.wire.connection import Inbound
from codeq_cluster.wire.refusals import HandshakeRefusal


class Unproved:
    """Keeps few unproved connections, and closes others.

    Args:
        count_max: Of strangers, and again of connections from the members' addresses.
        is_member: Returns whether a site is that of a member.
    """

    def __init__(self, count_max: int, is_member: Callable[[str], bool]) -> None:
        self._count_max = count_max
        self._is_member = is_member
        # Both in order of arrival.
        self._members: dict[Inbound, None] = {}
        self._strangers: dict[Inbound, str] = {}
        self._shares = FairShares(count_max, name="the unproved connections")

    def add(self, connection: Inbound) -> None:
        """Keep a connection, in the place of an older one if there is no other."""
        holder = site(connection.address)
        if self._is_member(holder):
            if len(self._members) >= self._count_max:
                self._crowd_out(next(iter(self._members)))
            self._members[connection] = None
            return
        while not self._shares.may_take(holder):
            own = (each for each, other in self._strangers.items() if other == holder)
            self._crowd_out(next(own, None) or next(iter(self._strangers)))
        self._shares.take(holder)
        self._strangers[connection] = holder

    def discard(self, connection: Inbound) -> None:
        """Forget a connection that has proved itself or has ended."""
        self._members.pop(connection, None)
        holder = self._strangers.pop(connection, None)
        if holder is not None:
            self._shares.give_back(holder)

    def _crowd_out(self, connection: Inbound) -> None:
        self.discard(connection)
        connection.give_up(HandshakeRefusal.CROWDED_OUT)
