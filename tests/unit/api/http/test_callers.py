"""Callers: only a trusted proxy may say for whom it asks, and only by one header."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.whole_requests import Whole
from codeq_cluster.settings import ProxySettings
from codeq_cluster.wire.addresses import site

PROXIES = ("10.0.0.0/8", "192.0.2.1/32", "fd00::/8")


@pytest.mark.parametrize(
    ("peer", "told", "caller"),
    [
        ("198.51.100.7", "203.0.113.5", "198.51.100.7"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.5, 10.9.9.9", "203.0.113.5"),
        ("192.0.2.1", "203.0.113.5,10.0.0.2 , 10.0.0.3", "203.0.113.5"),
        ("::ffff:10.0.0.1", "::ffff:203.0.113.5", "203.0.113.5"),
        ("fd00::1%eth0", "2001:db8::5", "2001:db8::5"),
        ("10.0.0.1", "203.0.113.5:4711", "203.0.113.5"),
        ("10.0.0.1", "[2001:db8::5]:4711", "2001:db8::5"),
        ("10.0.0.1", "203.0.113.5, unknown", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5, unknown, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", ", ,", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.9, 10.0.0.2", "10.0.0.9"),
        ("10.0.0.1", ", ".join(["1.1.1.1", *["10.0.0.2"] * 100]), "10.0.0.2"),
        ("", "203.0.113.5", ""),
    ],
)
def test_the_right_most_hop_that_is_no_trusted_proxy_is_the_caller(
    peer: str, told: str, caller: str
) -> None:
    """Hops further to the left are what the caller itself sent."""
    assert caller == Callers(ProxySettings(trusted=PROXIES)).address(peer, told)


@pytest.mark.parametrize(
    ("told", "caller"),
    [
        ("for=1.1.1.1, for=203.0.113.5;proto=https;by=10.0.0.1", "203.0.113.5"),
        ('proto=https; For="[2001:db8::5]:4711"', "2001:db8::5"),
        ('for="1.1.1.1, for=203.0.113.5', "203.0.113.5"),
        ("for=203.0.113.5, for=_hidden", "10.0.0.1"),
        ("for=203.0.113.5, proto=https", "10.0.0.1"),
        ("203.0.113.5", "10.0.0.1"),
    ],
)
def test_the_header_forwarded_is_read_as_rfc_7239_writes_it(told: str, caller: str) -> None:
    """A client's open quote cannot swallow the hop that the proxy appended."""
    callers = Callers(ProxySettings(trusted=PROXIES, header="forwarded"))

    assert caller == callers.address("10.0.0.1", told)


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded"])
def test_only_the_configured_header_counts(header: str) -> None:
    """A proxy passes on the other header as its client made it."""
    callers = Callers(ProxySettings(trusted=PROXIES, header=header))
    headers = {"x-forwarded-for": "203.0.113.1", "forwarded": "for=203.0.113.2"}
    whole = Whole(headers, {}, b"")
    whole.remote = "10.0.0.1"
    by_library = make_mocked_request("GET", "/", headers=headers).clone(remote="10.0.0.1")
    expected = {"x-forwarded-for": "203.0.113.1", "forwarded": "203.0.113.2"}[header]

    assert [expected] * 2 == [callers.of(whole), callers.of(by_library)]


def test_a_header_in_several_lines_is_one_list() -> None:
    """Some proxies add a line where others append to it; the last hop is the last of all lines."""
    lines = [("X-Forwarded-For", "1.1.1.1"), ("X-Forwarded-For", "203.0.113.5")]
    asked = make_mocked_request("GET", "/", headers=lines).clone(remote="10.0.0.1")  # type: ignore[arg-type]

    assert "203.0.113.5" == Callers(ProxySettings(trusted=PROXIES)).of(asked)


def test_a_network_of_ipv6_addresses_is_one_caller() -> None:
    """A provider's customer could otherwise be as many callers as it likes."""
    assert site("2001:db8::1") == site("2001:db8::ffff:1%eth0") != site("2001:db8:0:1::1")
    assert ("192.0.2.1", "192.0.2.1", "") == (site("192.0.2.1"), site("::ffff:192.0.2.1"), site(""))
