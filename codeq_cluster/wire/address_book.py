"""Address book: the peers of a node, and the addresses at which each may be reached."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.wire.addresses import Address, site

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """One peer's addresses.

    Attributes:
        own: As this node's owner has it.
        said: As the peer reports it itself; None until it has.
        recorded: As others report.
        site: Where it was when it last proved itself; empty before.
    """

    own: Address
    said: Address | None = None
    recorded: tuple[Address, ...] = ()
    site: str = ""


class AddressBook(Container[str]):
    """The peers by id.

    Args:
        peers: host:port of every peer by its id.

    Raises:
        ConfigInvalid: An address is not host:port.
    """

    def __init__(self, peers: Mapping[str, str]) -> None:
        self._entries = {peer: _Entry(Address.parse(text)) for peer, text in peers.items()}

    def __contains__(self, peer: object) -> bool:
        return peer in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def forget(self, peer: str) -> None:
        """Drop a peer."""
        del self._entries[peer]

    def note(self, peer: str, address: str, recorded: Sequence[str]) -> bool:
        """Add or change a peer, unless its address is bad; return whether the peer is in the book.

        Args:
            address: host:port.
            recorded: As others report; bad ones are skipped.
        """
        found = _addresses(peer, [address])
        if found:
            known = self._entries.get(peer, _Entry(found[0]))
            others = _addresses(peer, recorded)
            self._entries[peer] = replace(known, own=found[0], recorded=others)
        return bool(found)

    def said(self, peer: str, address: str) -> None:
        """Note the address that a peer reports of itself; one that is bad or empty is skipped."""
        with contextlib.suppress(ConfigInvalid):
            self._entries[peer].said = Address.parse(address)

    def seen(self, peer: str, host: str) -> None:
        """Note the host of a connection on which a peer has proved itself."""
        if peer in self._entries:
            self._entries[peer].site = site(host)

    def has_member_at(self, place: str) -> bool:
        """Return whether a site is a peer's: it proved itself there, or its address says so."""
        return any(
            place == entry.site or any(place == site(way.host) for way in self.ways(peer, None))
            for peer, entry in self._entries.items()
        )

    def ways(self, peer: str, reached: Address | None) -> list[Address]:
        """Return the addresses at which to dial a peer, in order.

        Args:
            peer: One of the book.
            reached: Where it was reached last.
        """
        entry = self._entries[peer]
        ways = [reached, entry.own, entry.said, *entry.recorded]
        return list(dict.fromkeys(way for way in ways if way is not None))


def _addresses(peer: str, texts: Iterable[str]) -> tuple[Address, ...]:
    """Return the addresses in these texts; others are logged and left out."""
    found = []
    for text in texts:
        try:
            found.append(Address.parse(text))
        except ConfigInvalid as error:
            log.warning("a peer without an address", extra={"peer": peer, "error": str(error)})
    return tuple(found)
