"""Front end: the proxies and the host names that the HTTP port believes."""

from __future__ import annotations

from dataclasses import dataclass

from codeq_cluster.settings.key import key
from codeq_cluster.settings.kinds import NETWORKS, choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Proxies whose word on a caller's address is taken."""

    # Addresses and networks in their usual form.
    trusted: tuple[str, ...] = key(
        (),
        NETWORKS,
        "addresses and networks of the proxies before this node; only they may say for whom they "
        "ask, by `proxies.header`",
    )
    # One header alone: a proxy passes on the one that it does not write, as its client made it.
    header: str = key(
        "x-forwarded-for",
        choice("x-forwarded-for", "forwarded"),
        "header to which the trusted proxies append their caller's address",
    )
