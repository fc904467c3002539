"""Target: which cluster a command means, and who asks."""

from __future__ import annotations

import argparse
from pathlib import Path

from codeq_cluster.cli.support.dev_cluster import DIRECTORY, TOKEN, published
from codeq_cluster.config.kinds import URL
from codeq_cluster.settings import environment

# At the end of the help of commands that act on the cluster and not on a tenant.
OPERATORS = "The token must be that of an operator of the cluster (scope codeq:operator)."


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which cluster is meant and who asks."""
    parser.add_argument(
        "--url",
        action="append",
        type=_base_url,
        metavar="URL",
        help="base URL of a node; may be repeated; "
        f"default: the running development cluster in {DIRECTORY}, else http://127.0.0.1:8080",
    )
    parser.add_argument(
        "--token", help=f"bearer token; default: CODEQ_TOKEN, else the development token {TOKEN}"
    )
    parser.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="PEM file of the authorities believed for https; default: CODEQ_CA, else the system's",
    )


def _base_url(text: str) -> str:
    try:
        return str(URL.parse(text))
    except ValueError as malformed:
        # The text is not repeated: it may hold a password.
        raise argparse.ArgumentTypeError(f"allowed is {URL.allowed}") from malformed


def urls_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the nodes meant by the flags of `add_target`."""
    if options.url:
        return tuple(options.url)
    running = tuple(str(node["url"]) for node in published(DIRECTORY))
    return running or ("http://127.0.0.1:8080",)


def token_of(options: argparse.Namespace) -> str:
    """Return the token meant by the flags of `add_target`."""
    return options.token or environment().get("CODEQ_TOKEN") or TOKEN


def ca_of(options: argparse.Namespace) -> Path | None:
    """Return the authorities meant by the flags of `add_target`; None for the system's."""
    given = options.ca or environment().get("CODEQ_CA")
    return Path(given) if given else None
