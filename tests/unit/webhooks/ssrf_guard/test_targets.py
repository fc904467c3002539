"""Targets: private addresses are refused in every spelling, public ones are accepted."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import string
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codeq_cluster.webhooks.ssrf_guard.addresses import is_public
from codeq_cluster.webhooks.ssrf_guard.targets import RefusedTarget, Target, Targets, read

PRIVATE_V4 = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32"),
    *("169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4"),
)
PRIVATE_V6 = (
    *("::/128", "::1/128", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "::/96"),
    *("64:ff9b:1::/48", "100::/64", "2001:db8::/32", "2001::/32", "5f00::/16"),
)
PUBLIC = ("1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1")

private_v4 = st.one_of(*(st.ip_addresses(network=network) for network in PRIVATE_V4))
private_v6 = st.one_of(*(st.ip_addresses(network=network) for network in PRIVATE_V6))


def _carriers(address: IPv4Address) -> tuple[IPv6Address, ...]:
    """Return the IPv6 addresses that carry the IPv4 address: mapped, 6to4, NAT64."""
    number = int(address)
    return (
        IPv6Address((0xFFFF << 32) + number),
        IPv6Address((0x2002 << 112) + (number << 80)),
        IPv6Address((0x64FF9B << 96) + number),
    )


def _spellings(address: IPv4Address) -> tuple[str, ...]:
    """Return the spellings of the address that the C library and browsers accept."""
    number = int(address)
    a, b, c, d = address.packed
    low_24, low_16 = number & 0xFFFFFF, number & 0xFFFF
    wide = str.maketrans(
        "0123456789.", "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19\u3002"
    )
    return (
        *(f"{address}", f"{address}.", f"{address}".translate(wide)),
        *(f"{number}", f"0x{number:x}", f"0X{number:X}", f"0{number:o}"),
        *(f"{a}.{low_24}", f"{a}.{b}.{low_16}", f"0x{a:x}.{b}.0{c:o}.{d}", f"{a:03}.{b}.{c}.{d}"),
        *(f"[{carrier}]" for carrier in _carriers(address)),
        f"[::ffff:{address}]",
    )


@given(st.ip_addresses())
def test_a_public_address_is_one_the_registries_call_global(
    address: IPv4Address | IPv6Address,
) -> None:
    """An address that is public here is public there too."""
    judged = address
    if isinstance(address, IPv6Address):
        carried = (
            [int(address) & 0xFFFFFFFF] if address in ipaddress.ip_network("64:ff9b::/96") else []
        )
        judged = IPv4Address(carried[0]) if carried else address.ipv4_mapped or address
    if is_public(str(address)):
        assert judged.is_global
        assert not judged.is_multicast
        assert not judged.is_reserved


@given(private_v4)
def test_a_private_ipv4_address_is_refused_however_it_is_spelt_or_carried(
    address: IPv4Address,
) -> None:
    """The spellings are decimal, hexadecimal, octal, shortened, full-width, and within IPv6."""
    assert not is_public(str(address))
    for carrier in _carriers(address):
        assert not is_public(str(carrier))
    for host in _spellings(address):
        for url in (f"http://{host}", f"https://{host}:8443/path?q"):
            assert isinstance(read(url, allow_private=False), RefusedTarget), url


@given(private_v6)
def test_a_private_ipv6_address_is_refused_however_it_is_spelt(address: IPv6Address) -> None:
    """The spellings are short, long, and with a zone."""
    for host in (address.compressed, address.exploded, f"{address}%eth0", f"{address}%25eth0"):
        assert not is_public(host)
        assert isinstance(read(f"http://[{host}]/", allow_private=False), RefusedTarget), host


@given(st.ip_addresses(v=4))
def test_an_ipv6_address_is_as_public_as_the_ipv4_address_it_carries(address: IPv4Address) -> None:
    """Mapped, 6to4 and NAT64 addresses lead to the IPv4 address."""
    verdicts = {is_public(str(carrier)) for carrier in _carriers(address)}

    assert verdicts == {is_public(str(address))}


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_a_target(address: str) -> None:
    """An address needs no name server."""
    host = f"[{address}]" if ":" in address else address

    target = read(f"https://{host}/hook", allow_private=False)

    assert is_public(address)
    assert isinstance(target, Target)
    assert (f"{address}:443", "") == (target.host, target.name)


@given(st.text("0123456789abcdefxABCDEFX.", min_size=1, max_size=16))
def test_an_address_of_the_c_library_never_passes_for_a_name(host: str) -> None:
    """The system's resolver would turn the name into an address without a check."""
    try:
        packed = socket.inet_aton(host)
    except OSError:
        return
    found = read(f"http://{host}/", allow_private=True)

    assert isinstance(found, RefusedTarget) or (found.name, host) == ("", str(IPv4Address(packed)))


@given(
    st.text(max_size=40)
    | st.builds("http://{}".format, st.text(string.printable, max_size=30))
    | st.builds("https://{}/".format, st.text("a.-_:@[]%0x\\#?/", max_size=20))
)
@example("http://[]@")
@example("//[]@")
def test_no_text_makes_reading_fail(text: str) -> None:
    """Any text is a target or refused; a target has a host, a port and no user."""
    found = read(text, allow_private=True)

    if isinstance(found, Target):
        assert found.url.scheme in ("http", "https")
        assert found.url.host
        assert found.url.port
        assert found.url.user is None
        assert found.url.password is None


@pytest.mark.parametrize(
    "url",
    [
        *("", "host", "//host/x", "ftp://host", "file:///etc/passwd", "javascript:alert(1)"),
        *("https://", "http:///x", "http:/host", "https://[::1", "http://[v1.x]y/"),
        *("http://host:0/", "http://host:65536/", "http://host:x/", "http://host:-1/"),
        *("http://user@host/", "http://user:word@host/", "http://:word@host/"),
        *("http://a b/", "http://host/\nX: y", "http://host/\t", "http://ho\u00adst/"),
        *("http://a..b/", "http://.host/", "http://host../", f"http://{'a' * 64}.b/"),
        *(f"http://{'a.' * 127}b/", "http://*.host/", "http://a%2eb/", "http://host\\@other/"),
        *("http://host.1/", "http://1.2.3.4.5/", "http://host.0x1/", "http://0x/"),
        "http://host/" + "x" * 2048,
    ],
)
@pytest.mark.parametrize("allow_private", [True, False])
def test_an_invalid_target_url_is_refused(url: str, allow_private: bool) -> None:
    """It is refused whether private targets are allowed or not."""
    assert isinstance(read(url, allow_private=allow_private), RefusedTarget)


@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST", "localhost.", "a.b.localhost", "l\uff4fcalhost"]
)
def test_names_of_this_machine_are_refused_unless_private_targets_are_allowed(name: str) -> None:
    """No name server is asked about them."""
    url = f"http://{name}:8080/"

    assert isinstance(read(url, allow_private=False), RefusedTarget)
    assert isinstance(read(url, allow_private=True), Target)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Hooks.Example/x", "hooks.example:80"),
        ("HTTPS://hooks.example.:443", "hooks.example:443"),
        ("https://hooks_1.example:8443?q=1#f", "hooks_1.example:8443"),
        ("https://m\u00fcnchen.example/\u00fc", "xn--mnchen-3ya.example:443"),
        ("http://localhoster/", "localhoster:80"),
        ("http://1a.2b/", "1a.2b:80"),
    ],
)
def test_one_server_has_one_name(url: str, host: str) -> None:
    """Case, the dot at the end and the default port make no difference."""
    target = read(url, allow_private=False)

    assert isinstance(target, Target)
    assert (host, host.rpartition(":")[0]) == (target.host, target.name)


def _answering(*addresses: str) -> Targets:
    async def lookup(name: str) -> Sequence[str]:
        assert "hooks.example" == name
        return addresses

    return Targets(allow_private=False, lookup=lookup)


@pytest.mark.parametrize(
    ("addresses", "allowed"),
    [
        (("1.1.1.1",), True),
        (("10.0.0.1",), False),
        (("127.0.0.1", "::1"), False),
        (("::ffff:169.254.169.254",), False),
        (("fd00::1", "1.1.1.1"), True),
        (("fe80::1%eth0",), False),
        (("10.0.0.1 ",), False),
    ],
)
async def test_a_name_is_allowed_when_one_of_its_addresses_is(
    addresses: tuple[str, ...], allowed: bool
) -> None:
    """No connection is made to the other addresses."""
    assert await _answering(*addresses).allows("https://hooks.example/x", tenant="acme") is allowed


async def test_a_name_that_does_not_resolve_is_let_through() -> None:
    """The name may exist tomorrow, and it is checked again before each call."""

    async def lookup(name: str) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, name)

    assert await Targets(allow_private=False, lookup=lookup).allows(
        "http://hooks.example/", tenant="acme"
    )


async def test_a_name_that_does_not_resolve_in_time_is_let_through() -> None:
    """A slow name server does not delay the request; its answer is dropped."""
    cancelled = asyncio.Event()

    async def lookup(name: str) -> Sequence[str]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ()

    targets = Targets(allow_private=False, lookup=lookup, timeout_s=0.01)

    assert await targets.allows("http://hooks.example/", tenant="acme")
    assert cancelled.is_set()


async def test_no_name_server_is_asked_without_need() -> None:
    """These are addresses, malformed URLs and, if private targets are allowed, all URLs."""

    async def lookup(name: str) -> Sequence[str]:
        raise AssertionError(name)

    strict = Targets(allow_private=False, lookup=lookup)
    lenient = Targets(allow_private=True, lookup=lookup)

    assert await strict.allows("http://1.1.1.1/", tenant="acme")
    assert not await strict.allows("http://localhost/", tenant="acme")
    assert not await strict.allows("http://hooks..example/", tenant="acme")
    assert await lenient.allows("http://hooks.example/", tenant="acme")
    assert await lenient.allows("http://127.0.0.1:8080/", tenant="acme")
