"""Addresses: the host and port of a peer, and the texts that a node's addresses may be."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from codeq_cluster.errors import ConfigInvalid

Dialled = TypeVar("Dialled", bound=asyncio.Protocol)

# A name or an address, IPv6 in brackets.
_HOST = (
    r"([A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?"
    r"|\[[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,16})?\])"
)
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"

# The address of a node's link, and that of its HTTP port. Configured links, the membership routes
# and the OpenAPI document all go by these.
ADDRESS = re.compile(f"{_HOST}:{_PORT}")
HTTP_ADDRESS = re.compile(f"https?://{_HOST}(:{_PORT})?/?")
ADDRESS_ALLOWED = "host:port, the port 1 to 65535"


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
