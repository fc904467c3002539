"""SSRF guard: no connection is made to a private address, whatever earlier checks said."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import aiohttp
import pytest

from codeq_cluster.settings import Unsigned, WebhookSettings
from codeq_cluster.webhooks.circuit_breaker import CircuitBreaker
from codeq_cluster.webhooks.dns import DnsResolver
from codeq_cluster.webhooks.http_client import Sent
from codeq_cluster.webhooks.ssrf_guard.connecting import AddressRefused, Gate
from codeq_cluster.webhooks.ssrf_guard.targets import Targets
from tests.integration.webhooks.target import listening, sending

BODY = b"{}"
STRICT = WebhookSettings(allow_private=False, unsigned=Unsigned.ALLOW)
REFUSED = Sent(error="the target's address is not public")


class Rebinding:
    """A name server whose answer is a public address first and then another."""

    def __init__(self, *then: str) -> None:
        self._then = then
        self.asked = 0

    async def __call__(self, name: str) -> Sequence[str]:
        """Return the next answer."""
        self.asked += 1
        return ("1.1.1.1",) if self.asked == 1 else self._then


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"])
async def test_a_name_that_later_resolves_to_this_machine_is_refused(address: str) -> None:
    """The check at registration does not count when the request is sent."""
    names = Rebinding(address)
    async with listening() as target, sending(STRICT, lookup=names) as sender:
        url = f"http://hooks.example:{target.port}/"
        allowed = await Targets(allow_private=False, lookup=names).allows(url, tenant="acme")
        sent = await sender.post(url, BODY, tenant="acme", delivery="d1")

    assert allowed
    assert REFUSED == sent
    assert 2 == names.asked
    assert [] == target.heard


async def test_a_refused_address_is_no_failure_of_its_host() -> None:
    """No request was sent, so it shows nothing about the host."""
    breaker = CircuitBreaker(now_s=lambda: 0.0, failures_max=1)

    async def lookup(name: str) -> Sequence[str]:
        return ("10.0.0.1",)

    async with sending(STRICT, lookup=lookup, breaker=breaker) as sender:
        sent = [
            await sender.post("http://hooks.example/", BODY, tenant="acme", delivery="d1")
            for _ in range(3)
        ]

    assert [REFUSED] * 3 == sent


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "127.1", "127.0.0.1."),
        *("localhost", "LOCALHOST", "localhost.", "[::1]", "[::ffff:127.0.0.1]", "[::]", "0.0.0.0"),
        *("0", "[::ffff:7f00:1]", "127.0.0.2"),
    ],
)
async def test_a_url_that_names_this_machine_is_refused(host: str) -> None:
    """Every spelling is refused; if private targets are allowed, the canonical ones are reached."""
    async with listening() as target, sending(STRICT) as sender:
        url = f"http://{host}:{target.port}/"
        allowed = await Targets(
            allow_private=False, lookup=DnsResolver(threads_max=1).addresses
        ).allows(url, tenant="acme")
        sent = await sender.post(url, BODY, tenant="acme", delivery="d1")

    assert not allowed
    assert not sent.ok
    assert sent.error.startswith("the URL names")
    assert [] == target.heard


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"])
async def test_an_address_in_a_url_is_checked_though_it_passes_by_the_resolver(host: str) -> None:
    """The check at the socket holds even if no other check was made."""

    async def lookup(name: str) -> Sequence[str]:
        raise AssertionError(name)

    gate = Gate(allow_private=False, lookup=lookup)
    connector = aiohttp.TCPConnector(resolver=gate, socket_factory=gate.socket)
    async with listening() as target, aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await session.post(f"http://{host}:{target.port}/", data=BODY)

    assert isinstance(caught.value.os_error, AddressRefused)
    assert [] == target.heard


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "017700000001", "127.1"])
async def test_other_spellings_do_not_pass_by_the_socket(host: str) -> None:
    """The library refuses them itself or passes them to the system's resolver."""
    gate = Gate(allow_private=False, lookup=DnsResolver(threads_max=1).addresses)
    connector = aiohttp.TCPConnector(resolver=gate, socket_factory=gate.socket)
    async with listening() as target, aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises((aiohttp.ClientConnectorError, aiohttp.InvalidURL)):
            await session.post(f"http://{host}:{target.port}/", data=BODY)

    assert [] == target.heard


async def test_an_answer_no_resolver_of_ours_gave_is_checked_too() -> None:
    """The connected address itself is checked, for instance one from a cached answer."""

    async def lookup(name: str) -> Sequence[str]:
        return ("127.0.0.1",)

    gate = Gate(allow_private=False, lookup=lookup)
    lenient = Gate(allow_private=True, lookup=lookup)
    connector = aiohttp.TCPConnector(resolver=lenient, socket_factory=gate.socket)
    async with listening() as target, aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await session.post(f"http://hooks.example:{target.port}/", data=BODY)

    assert isinstance(caught.value.os_error, AddressRefused)
    assert [] == target.heard


async def test_of_a_names_addresses_only_the_public_ones_are_left() -> None:
    """They keep their order and belong to the requested family."""

    async def lookup(name: str) -> Sequence[str]:
        return ("10.0.0.1", "2606:4700::1111", "1.1.1.1", "::1", "8.8.8.8")

    gate = Gate(allow_private=False, lookup=lookup)
    found = {
        family: [each["host"] for each in await gate.resolve("hooks.example", 443, family)]
        for family in (socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6)
    }

    assert {
        socket.AF_UNSPEC: ["2606:4700::1111", "1.1.1.1", "8.8.8.8"],
        socket.AF_INET: ["1.1.1.1", "8.8.8.8"],
        socket.AF_INET6: ["2606:4700::1111"],
    } == found


async def test_names_are_resolved_by_the_system_each_in_a_thread() -> None:
    """Look-ups beyond the number of places wait."""
    names = DnsResolver(threads_max=1)

    found = await asyncio.gather(*(names.addresses("localhost") for _ in range(5)))

    assert all(set(addresses) <= {"127.0.0.1", "::1"} for addresses in found)
    assert all(len(addresses) == len(set(addresses)) > 0 for addresses in found)


@pytest.mark.parametrize("name", ["a..b", "a" * 64 + ".example", "\udc80"])
async def test_an_invalid_host_name_does_not_resolve(name: str) -> None:
    """A failed look-up frees its place too."""
    names = DnsResolver(threads_max=1)
    for _ in range(3):
        with pytest.raises(OSError, match=r"."):
            await names.addresses(name)

    assert await names.addresses("localhost")
