"""Target: where a cluster is and how to be let in, from the one URL that a framework has for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from codeq_cluster.errors import ConfigInvalid

PORT: Final = 8080
DEADLINE_S: Final = 30.0  # Room for an election; then Kombu tries again, as it is told to.

_SCHEMES: Final = ("codeq", "codeqs")
_OPTIONS: Final = frozenset({"ca"})
_TOKEN: Final = re.compile(r"(?<=://)[^@/?]*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cluster.

    Attributes:
        urls: Base URLs of nodes, at least one; the client learns the others.
        token: May create and claim; of an admin, if queues are to be counted and purged too.
        ca_file: The only authorities trusted; None for the system's.
        deadline_s: Of one request with all its repetitions.
    """

    urls: tuple[str, ...]
    token: str
    ca_file: Path | None = None
    deadline_s: float = DEADLINE_S


def target_of(
    url: str, *, token: str = "", ssl: object = None, deadline_s: float = DEADLINE_S
) -> Target:
    """Return what a URL means: `codeq://TOKEN@HOST:PORT,HOST:PORT?ca=FILE`, `codeqs` for TLS.

    Args:
        url: The token may be user or password; without a port, 8080.
        token: Of the transport's options, in place of one in the URL.
        deadline_s: Of one request with all its repetitions.
        ssl: As in `broker_use_ssl`: True, or a mapping with `ca_certs`.

    Raises:
        ConfigInvalid: It is no such URL; the message does not hold the token.
    """
    shown = without_token(url)
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ConfigInvalid(f"{shown}: must begin with codeq:// or codeqs://")
    user, _, hosts = parts.netloc.rpartition("@")
    if path := parts.path.strip("/"):
        raise ConfigInvalid(
            f"{shown}: remove /{path}; there are no databases and no virtual hosts, "
            "a token's tenant keeps applications apart"
        )
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - _OPTIONS):
        raise ConfigInvalid(f"{shown}: unknown option {unknown[0]}; use {', '.join(_OPTIONS)}")
    given = token or unquote(user.strip(":").rpartition(":")[2])
    if not given:
        raise ConfigInvalid(
            f"{shown}: no token; write codeq://TOKEN@HOST:PORT, or set the option token"
        )
    ca = options.get("ca") or (str(ssl.get("ca_certs") or "") if isinstance(ssl, Mapping) else "")
    secure = parts.scheme == "codeqs" or bool(ca) or bool(ssl)
    scheme = "https" if secure else "http"
    named = tuple(f"{scheme}://{_with_port(host)}" for host in hosts.split(",") if host)
    for node in named:
        _check_port(node, shown)
    if not named:
        raise ConfigInvalid(f"{shown}: no node; write codeq://TOKEN@HOST:PORT,HOST:PORT")
    return Target(urls=named, token=given, ca_file=Path(ca) if ca else None, deadline_s=deadline_s)


def without_token(url: str, *, mask: str = "**") -> str:
    """Return a URL that may be shown and logged."""
    return _TOKEN.sub(f"{mask}@", url)


def _check_port(node: str, shown: str) -> None:
    try:
        port = urlsplit(node).port
    except ValueError:
        port = 0
    if not port:
        host = node.rpartition("//")[2]
        raise ConfigInvalid(f"{shown}: {host}: the port must be a number from 1 to 65535")


def _with_port(host: str) -> str:
    named = host.rpartition("]")[2] if host.startswith("[") else host
    return host if ":" in named else f"{host}:{PORT}"
