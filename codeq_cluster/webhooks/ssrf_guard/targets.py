"""Targets: which URLs may be sent to, as far as can be decided before a connection."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from yarl import URL

from codeq_cluster.core.bounds import URL_CHARS_MAX
from codeq_cluster.webhooks.dns import looking_up_for
from codeq_cluster.webhooks.ssrf_guard.addresses import is_public

# Returns the addresses of a host name, as canonical text; raises OSError if there are none.
Lookup = Callable[[str], Awaitable[Sequence[str]]]

RESOLVE_TIMEOUT_S = 1.0  # A request to the API waits for it.

_NAME_CHARS_MAX = 253  # RFC 1035, 3.1, without the length bytes.
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL that may be sent to, unless its name resolves to a refused address.

    Attributes:
        host: `name:port`, in lower case; requests with the same one share a server.
        name: To be resolved, or empty if the URL contains an address.
    """

    url: URL
    host: str
    name: str


@dataclass(frozen=True, slots=True)
class RefusedTarget:
    """The reason why a URL may not be sent to."""

    reason: str


def read(text: str, *, allow_private: bool) -> Target | RefusedTarget:
    """Return the target of a URL, or the refusal, without any DNS look-up.

    An IPv4 address must be four decimal numbers. Libraries read single-number, hexadecimal, octal
    and shortened forms differently, so these are refused.
    """
    if len(text) > URL_CHARS_MAX or not text.isprintable() or " " in text:
        return RefusedTarget("the URL is too long or holds characters no URL has")
    try:
        url = URL(text)
        host, port = url.raw_host or "", url.port
    except (ValueError, IndexError):  # yarl raises IndexError for a host of `[]@`.
        return RefusedTarget("the URL is malformed")
    if url.scheme not in ("http", "https"):
        return RefusedTarget("the URL is neither http nor https")
    if not port:
        return RefusedTarget("the URL names port 0")
    if url.user is not None or url.password is not None:
        return RefusedTarget("the URL holds a user or a password")
    # The final dot of a full name belongs to no label; an address has none.
    name = host.removesuffix(".")
    if _is_address(host):
        name = ""
    elif not _is_name(name):
        return RefusedTarget("the URL names no host")
    if not allow_private and _is_private(host, name):
        return RefusedTarget("the URL names a host that is not public")
    return Target(url=url, host=f"{name or host}:{port}", name=name)


class Targets:
    """Decides whether a URL may be registered as a target.

    A name may resolve to another address later, so `Gate` makes the final check at connect time.
    """

    def __init__(
        self, *, allow_private: bool, lookup: Lookup, timeout_s: float = RESOLVE_TIMEOUT_S
    ) -> None:
        self._allow_private = allow_private
        self._lookup = lookup
        self._timeout_s = timeout_s

    async def allows(self, url: str, *, tenant: str) -> bool:
        """Return whether the tenant's URL may be sent to; takes at most the timeout.

        A name that does not resolve, or not in time, is allowed.
        """
        target = read(url, allow_private=self._allow_private)
        if isinstance(target, RefusedTarget):
            return False
        if self._allow_private or not target.name:
            return True
        try:
            async with asyncio.timeout(self._timeout_s):
                with looking_up_for(tenant):
                    addresses = await self._lookup(target.name)
        except OSError:  # TimeoutError is one.
            return True
        return any(is_public(address) for address in addresses)


def _is_private(host: str, name: str) -> bool:
    if name:  # In lower case: yarl makes it so.
        return name == "localhost" or name.endswith(".localhost")  # RFC 6761, 6.3
    return not is_public(host)


def _is_address(host: str) -> bool:
    try:
        if ":" in host:
            # A zone is valid only on this machine.
            return IPv6Address(host).scope_id is None
        IPv4Address(host)
    except ValueError:
        return False
    return True


def _is_name(name: str) -> bool:
    labels = name.split(".")
    return (
        len(name) <= _NAME_CHARS_MAX
        and all(_LABEL.fullmatch(label) for label in labels)
        # If the last label is a number, the whole is an IPv4 address or invalid (WHATWG, 3.5).
        and not _NUMBER.fullmatch(labels[-1])
    )
