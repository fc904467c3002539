"""Relays: the rows of relays on all shards of a simulated cluster, checked with every entry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.items import Aside
from codeq_cluster.core.relays import Relay, RelayLink
from codeq_cluster.core.stored_item import ItemKind


class RelayFault(AssertionError):
    """The rows of relays contradict each other; the text says how."""


@dataclass(slots=True)
class _Shard:
    """The rows of one shard, by their keys.

    Attributes:
        lines: Rows of the lines to other shards.
        numbers: All that were ever given, each with the shard it was given for.
        asides: The rows that were taken out of the lines, by the key of what is set aside.
    """

    relays: dict[bytes, Relay] = field(default_factory=dict)
    links: dict[str, RelayLink] = field(default_factory=dict)
    numbers: set[tuple[int, int]] = field(default_factory=set)
    lines: set[bytes] = field(default_factory=set)
    asides: dict[bytes, bytes] = field(default_factory=dict)


class RelayRows:
    """The relays of a cluster, as the first replica of each shard applies its entries.

    An entry that is sent to another shard is applied here before, so at every moment the shard
    that sends is ahead.

    Attributes:
        count: How many relays were ever made.
    """

    def __init__(self) -> None:
        self.count = 0
        self._shards: dict[int, _Shard] = defaultdict(_Shard)

    @property
    def waiting(self) -> int:
        """Return how many relays are in a line, or were set aside."""
        return sum(len(shard.lines) + len(shard.asides) for shard in self._shards.values())

    def link(self, shard: int, link_id: str) -> RelayLink:
        """Return how far a shard's relays to or from another one have come."""
        return self._shards[shard].links.get(link_id, RelayLink(id=link_id))

    def lines(self, shard: int) -> set[bytes]:
        """Return the rows of a shard's lines."""
        return self._shards[shard].lines

    def written(self, shard: int, rows: Mapping[bytes, bytes | None]) -> None:
        """Follow an entry's rows.

        Raises:
            RelayFault: The rows are not those of the relays.
        """
        changed = [self._write(self._shards[shard], key, value) for key, value in rows.items()]
        if any(changed):
            self._check_lines(shard)
            self._check_numbers()

    def _write(self, of: _Shard, key: bytes, value: bytes | None) -> bool:
        """Keep a row; return whether it says anything of relays."""
        family = keyspace.family(key)
        if family is keyspace.Family.FORWARD:
            (of.lines.discard if value is None else of.lines.add)(key)
            return True
        if family is not keyspace.Family.ITEM:
            return False
        kind, _, item_id = keyspace.item_parts(key)
        if kind is ItemKind.RELAY:
            known = of.relays.pop(key, None)
            if value is not None:
                self.count += known is None
                relay = records.decode_item(value)
                assert isinstance(relay, Relay)
                of.relays[key] = relay
                of.numbers.add((relay.to, relay.number))
        elif kind is ItemKind.ASIDE:
            of.asides.pop(key, None)
            aside = records.decode_item(value) if value is not None else None
            if isinstance(aside, Aside) and aside.kind == ItemKind.RELAY:
                of.asides[key] = aside.timer
        elif kind is ItemKind.RELAY_LINK:
            assert value is not None, "a link is deleted"
            link = records.decode_item(value)
            assert isinstance(link, RelayLink)
            before = of.links.get(item_id, RelayLink(id=item_id))
            if link.number < before.number:
                raise RelayFault(f"{item_id} goes back: {before} and then {link}")
            of.links[item_id] = link
        else:
            return False
        return True

    def _check_lines(self, shard: int) -> None:
        of = self._shards[shard]
        wanted = [
            key
            for relay in of.relays.values()
            if relay.sent_as is not None
            for key in keyspace.item_index_keys(relay)
        ]
        found = sorted((*of.lines, *of.asides.values()))
        if found != sorted(wanted):
            odd = sorted(set(found) ^ set(wanted)) or found
            raise RelayFault(f"a line has a row too many or too few: {odd[0]!r}")
        for relay in of.relays.values():
            taken = of.links.get(f"to.{relay.to}", _NO_LINK).number
            if relay.sent_as is not None and relay.number <= taken:
                raise RelayFault(f"{relay.id} waits behind {taken}, which the shard has")

    def _check_numbers(self) -> None:
        for origin, of in list(self._shards.items()):
            for to, link in _sent(of):
                there = self.link(to, f"from.{origin}")
                if link.number > there.number:
                    raise RelayFault(
                        f"shard {to} has those of {origin} up to {there.number}, and {link.number} "
                        "is said to be taken"
                    )
                if there.number and (to, there.number) not in of.numbers:
                    raise RelayFault(f"shard {to} has {there.number}, which {origin} never gave")


_NO_LINK = RelayLink(id="to.0")


def _sent(of: _Shard) -> Iterator[tuple[int, RelayLink]]:
    """Yield each other shard that relays were sent to, with the link to it."""
    for link_id, link in of.links.items():
        way, _, shard = link_id.partition(".")
        if way == "to":
            yield int(shard), link
