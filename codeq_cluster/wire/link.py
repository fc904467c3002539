"""Link: what all connections of one node share."""

from __future__ import annotations

from dataclasses import dataclass, field

from codeq_cluster.settings import LinkSettings
from codeq_cluster.wire.address_book import AddressBook
from codeq_cluster.wire.certificates import Certificates, LinkContexts
from codeq_cluster.wire.connection import Inbound, Outbound
from codeq_cluster.wire.counters import LinkCounters
from codeq_cluster.wire.handshake import LinkIdentity
from codeq_cluster.wire.open_connections import OpenConnections


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One node's end of the link.

    Attributes:
        identity: This node.
        book: The peers' addresses.
        settings: Bounds.
        certificates: For TLS; None for none.
        counters: Counts.
        open: Every connection whose socket is open.
        inbound: By peer, the connection on which it sends.
        outbound: By peer, the connection on which this node sends.
    """

    identity: LinkIdentity
    book: AddressBook
    settings: LinkSettings
    certificates: Certificates[LinkContexts] | None
    counters: LinkCounters = field(default_factory=LinkCounters)
    open: OpenConnections = field(default_factory=OpenConnections)
    inbound: dict[str, Inbound] = field(default_factory=dict)
    outbound: dict[str, Outbound] = field(default_factory=dict)
