"""Connecting: the final check of a target's address, at connect time."""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import AddrInfoType

from codeq_cluster.webhooks.ssrf_guard.addresses import is_public
from codeq_cluster.webhooks.ssrf_guard.targets import Lookup


class AddressRefused(OSError):
    """The target's address must not be connected to; nothing was sent."""

    def __init__(self) -> None:
        super().__init__("the target's address is not public")


class Gate(AbstractResolver):
    """Resolver and socket factory of one connector.

    As a resolver, it drops refused addresses. Addresses in a URL and cached answers bypass a
    resolver, so every new socket is checked again. The connector passes the address it is about to
    connect to.
    """

    def __init__(self, *, allow_private: bool, lookup: Lookup) -> None:
        self._allow_private = allow_private
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the allowed addresses of a name.

        Raises:
            AddressRefused: The name has addresses, but none is allowed.
            OSError: The name cannot be resolved.
        """
        addresses = await self._lookup(host)
        allowed = [address for address in addresses if self._allows(address)]
        if not allowed:
            raise AddressRefused
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in allowed
            if family in (socket.AF_UNSPEC, socket.AF_INET6 if ":" in address else socket.AF_INET)
        ]

    async def close(self) -> None:
        """Do nothing: the look-up belongs to the caller."""

    def socket(self, info: AddrInfoType) -> socket.socket:
        """Make the socket for one connection.

        Raises:
            AddressRefused: The address may not be connected to.
        """
        family, kind, protocol, _, address = info
        if not self._allows(str(address[0])):
            raise AddressRefused
        return socket.socket(family, kind, protocol)

    def _allows(self, address: str) -> bool:
        return self._allow_private or is_public(address)
