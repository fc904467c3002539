"""Addresses: decides which IP addresses belong to the public Internet."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

# Spelt out from the IANA special-purpose registries: `ipaddress.is_global` differs between patch
# releases of Python and includes multicast.
_NOT_PUBLIC_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network; Linux connects 0.0.0.0 to itself
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers, and by the metadata service of one cloud
        "127.0.0.0/8",
        "168.63.129.16/32",  # public by number, but the host agent of every machine on Azure
        "169.254.0.0/16",  # link-local; 169.254.169.254 hands out credentials
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation, as are 198.51.100 and 203.0.113
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)

# The only range of IPv6 assigned as global unicast. Loopback, unique local (fc00::/7), link-local
# (fe80::/10), multicast and all reserved ranges lie outside.
_GLOBAL_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation, as is 3fff
        "3fff::/20",
    )
)
# RFC 6052: the last 32 bits are the IPv4 address that a translator connects to.
_NAT64 = IPv6Network("64:ff9b::/96")
_LOW_32 = 2**32 - 1


def is_public(address: str) -> bool:
    """Return whether a text is the canonical form of a public unicast address.

    An IPv6 address that carries an IPv4 address (mapped, 6to4, NAT64) is judged by that one.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv4Address):
        return _is_public_v4(parsed)
    carried = _carried(parsed)
    if carried is not None:
        return _is_public_v4(carried)
    return (
        parsed.scope_id is None
        and parsed in _GLOBAL_V6
        and not any(parsed in network for network in _NOT_PUBLIC_V6)
    )


def _is_public_v4(address: IPv4Address) -> bool:
    return not any(address in network for network in _NOT_PUBLIC_V4)


def _carried(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & _LOW_32)
    return address.ipv4_mapped or address.sixtofour
