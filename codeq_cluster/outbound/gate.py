"""Gate: the check at connect time, which has the last word on where a request goes."""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import AddrInfoType

from codeq_cluster.outbound.addresses import is_public
from codeq_cluster.outbound.targets import Lookup


class AddressRefused(OSError):
    """The target's address is not one that may be connected to; nothing was sent."""

    def __init__(self) -> None:
        super().__init__("the target's address is not public")


class Gate(AbstractResolver):
    """Resolver and socket factory of one connector.

    As a resolver it leaves out what is refused. Addresses in a URL and cached answers do not pass
    by a resolver, so every socket is checked again as it is made: the connector hands over the very
    address it connects the socket to.
    """

    def __init__(self, *, allow_private: bool, lookup: Lookup) -> None:
        self._allow_private = allow_private
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name that may be connected to.

        Raises:
            AddressRefused: There are addresses, and none of them may be.
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
