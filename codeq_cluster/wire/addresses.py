"""Addresses: the host and port of a peer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from codeq_cluster.codec.membership import ADDRESS, ADDRESS_ALLOWED
from codeq_cluster.errors import ConfigInvalid

Dialled = TypeVar("Dialled", bound=asyncio.Protocol)

_SITE_BITS = 64  # Of an IPv6 address: one customer of a provider has all addresses behind it.


@dataclass(frozen=True, slots=True)
class Address:
    """A host (name, IPv4 or IPv6 address) and a TCP port."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> Address:
        """Return the address in a text host:port; an IPv6 address is in brackets.

        Raises:
            ConfigInvalid: The text has another form.
        """
        if not ADDRESS.fullmatch(text):
            raise ConfigInvalid(f"address {text!r} must be {ADDRESS_ALLOWED}")
        host, _, port = text.rpartition(":")
        return Address(host.strip("[]"), int(port))

    async def connect(self, protocol: Callable[[], Dialled]) -> Dialled:
        """Open a connection to the first of the host's addresses that accepts one.

        Raises:
            ConnectionRefusedError: Every address refused.
            OSError: The name is unknown, or an address did not answer.
        """
        loop = asyncio.get_running_loop()
        # One address at a time: the loop's own search merges the errors into one and loses their
        # kind.
        failure: OSError | None = None
        for host in await self._resolve():
            try:
                _, dialled = await loop.create_connection(protocol, host, self.port)
            except OSError as error:
                if failure is None or not isinstance(error, ConnectionRefusedError):
                    failure = error
            else:
                return dialled
        raise failure or OSError(f"{self.host} has no address")

    async def _resolve(self) -> list[str]:
        try:
            return [str(ipaddress.ip_address(self.host))]
        except ValueError:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            return [str(address[0]) for *_, address in found]


def site(host: str) -> str:
    """Return the part of an IP address that tells machines apart; another text unchanged."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, _SITE_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)
