"""Callers: the address that a request comes from, beyond the proxies that the settings trust."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import islice

from aiohttp import web

from codeq_cluster.api.http.whole_requests import Whole
from codeq_cluster.settings import ProxySettings

# Proxies in a row: each costs 5 µs, and a header of trusted addresses could name 800.
_HOPS_MAX = 16
_FOR = re.compile(r'(?:^|;)\s*for="?([^";]*)"?\s*(?:;|$)', re.IGNORECASE)
_PORT = re.compile(r"\[(?P<six>[0-9a-fA-F:.]+)\](?::[0-9]+)?|(?P<four>[0-9.]+):[0-9]+")

Address = IPv4Address | IPv6Address


class Callers:
    """Tells callers apart by their addresses."""

    def __init__(self, settings: ProxySettings) -> None:
        self._networks = tuple(ip_network(network) for network in settings.trusted)
        self._header = settings.header

    def trusts(self, peer: str) -> bool:
        """Return whether an address is a trusted proxy's: it asks for many callers."""
        address = _parsed(peer)
        return address is not None and self._trusted(address)

    def address(self, peer: str, told: str) -> str:
        """Return the address of the caller that a request came from.

        Args:
            peer: The address of the connection's other end.
            told: What `proxies.header` says, its lines joined by commas.

        The right-most address that is no trusted proxy's is the caller's: everything to its left is
        the caller's own word. A hop that cannot be read hides the caller, so the proxy that wrote
        it stands for it.
        """
        caller = _parsed(peer)
        if caller is None:
            return peer
        hops = islice(self._hops(told), _HOPS_MAX)
        while self._trusted(caller) and (hop := next(hops, None)) is not None:
            caller = hop
        return str(caller)

    def of(self, asked: web.BaseRequest | Whole) -> str:
        """Return the address of a request's caller; empty if its connection is gone."""
        return self.address(asked.remote or "", told(asked, self._header))

    def _trusted(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _hops(self, told: str) -> Iterator[Address]:
        """Yield the addresses of a header from right to left, up to one that cannot be read."""
        for part in reversed(told.split(",")):
            text = part
            if self._header == "forwarded":
                found = _FOR.search(part)
                text = found[1] if found else ""
            hop = _parsed(text.strip())
            if hop is None:
                return
            yield hop


def told(asked: web.BaseRequest | Whole, name: str) -> str:
    """Return a header's lines, joined by commas as in RFC 9110 §5.3; empty without any.

    Args:
        name: In lower case.
    """
    if isinstance(asked, Whole):
        return asked.headers.get(name, "")
    return ", ".join(asked.headers.getall(name, ()))


def is_served(host: str, names: tuple[str, ...]) -> bool:
    """Return whether a Host header names an IP address, or one of the names in lower case.

    A page whose own name leads to this machine (DNS rebinding) still sends its own name.
    """
    name = re.sub(r":[0-9]*$", "", host).lower()
    return name in names or _parsed(name.strip("[]")) is not None


def _parsed(text: str) -> Address | None:
    """Return an address without its zone, its brackets and its port."""
    found = _PORT.fullmatch(text)
    if found is not None:
        text = found["six"] or found["four"]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
