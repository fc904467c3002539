"""Target: the cluster and the token of a command, by flag, else variable, else profile."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from codeq_cluster.cli.support.dev_cluster import DIRECTORY, TOKEN, published
from codeq_cluster.cli.support.output import note
from codeq_cluster.cli.support.profiles import Profile, chosen
from codeq_cluster.client import Token
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import environment
from codeq_cluster.settings.kinds import URL

_VARIABLE = "CODEQ_TOKEN"
_DEVELOPMENT = Token(TOKEN, "the development token, taken because none is named,")


class Caller(Enum):
    """The role a command speaks as, with the variables of its token; the first one set wins."""

    PRODUCER = ("CODEQ_PRODUCER_TOKEN", _VARIABLE)
    WORKER = ("CODEQ_WORKER_TOKEN", _VARIABLE)
    # codeQ's variable for the producer serves the admin too.
    ADMIN = (_VARIABLE, "CODEQ_PRODUCER_TOKEN")
    # Of the cluster, rather than of a tenant.
    OPERATOR = ("CODEQ_OPERATOR_TOKEN", _VARIABLE)

    def of_profile(self, profile: Profile) -> str:
        """Return the role's token in a profile; empty for none."""
        match self:
            case Caller.PRODUCER:
                return profile.producer_token or profile.token
            case Caller.WORKER:
                return profile.worker_token or profile.token
            case Caller.ADMIN:
                return profile.token or profile.producer_token
            case Caller.OPERATOR:
                return profile.operator_token or profile.token


def add_target(parser: argparse.ArgumentParser, caller: Caller = Caller.ADMIN) -> None:
    """Add the flags that select the cluster and the token."""
    parser.set_defaults(caller=caller)
    if caller is Caller.OPERATOR:
        parser.epilog = (
            "The token must be that of an operator of the cluster (scope codeq:operator)."
        )
    parser.add_argument(
        "--url",
        "--base-url",
        action="append",
        type=base_url,
        metavar="URL",
        help="base URL of a node; may be repeated; default: CODEQ_BASE_URL, else the profile's, "
        f"else the running development cluster in {DIRECTORY}, else http://127.0.0.1:8080",
    )
    parser.add_argument(
        "--token",
        help=f"bearer token; default: {', else '.join(caller.value)}, else the profile's, "
        f"else the development token {TOKEN}",
    )
    parser.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="PEM file of the authorities trusted for https; default: CODEQ_CA, else the "
        "profile's, else the system's",
    )
    parser.add_argument(
        "--profile", metavar="NAME", help="see init; default: CODEQ_PROFILE, else the current one"
    )


def base_url(text: str) -> str:
    """Return the base URL of a node, for a flag.

    Raises:
        ArgumentTypeError: It is not a base URL.
    """
    try:
        return str(URL.parse(text))
    except ValueError as malformed:
        # The text is not repeated: it may hold a password.
        raise argparse.ArgumentTypeError(f"must be {URL.allowed}") from malformed


def urls_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the nodes selected by the flags of `add_target`.

    Raises:
        ConfigInvalid: A variable or a profile has a value that is not a base URL.
    """
    if options.url:
        return tuple(options.url)
    if named := environment().get("CODEQ_BASE_URL"):
        return _listed(named, "CODEQ_BASE_URL")
    if named := _profile(options).base_url:
        return _listed(named, "baseUrl of the profile")
    running = tuple(str(node["url"]) for node in published(DIRECTORY))
    return running or ("http://127.0.0.1:8080",)


def token_of(options: argparse.Namespace) -> Token:
    """Return the token selected by the flags of `add_target`."""
    if options.token:
        return Token(options.token, "--token")
    return token_for(options, options.caller)


def token_for(options: argparse.Namespace, caller: Caller) -> Token:
    """Return a role's token by variable, profile or default, ignoring the flag."""
    variables = environment()
    for name in caller.value:
        if variables.get(name):
            return Token(variables[name], name)
    if kept := caller.of_profile(_profile(options)):
        return Token(kept, "the profile's token")
    return _DEVELOPMENT


def ca_of(options: argparse.Namespace) -> Path | None:
    """Return the trusted authorities by the flags of `add_target`; None for the system's."""
    given = options.ca or environment().get("CODEQ_CA") or _profile(options).ca_file
    return Path(given).expanduser() if given else None


def names_cluster(options: argparse.Namespace) -> bool:
    """Return whether a flag, a variable or a profile selects a cluster."""
    named = options.url or environment().get("CODEQ_BASE_URL") or _profile(options).base_url
    return bool(named)


def say_default(options: argparse.Namespace) -> None:
    """Tell a person at a terminal which cluster and which token a command takes by default."""
    named, default = names_cluster(options), token_of(options) is _DEVELOPMENT
    if sys.stderr.isatty() and (default or not named):
        token = " with the development token" if default else ""
        flag = "--token" if named else "--url"
        note(f"asking {urls_of(options)[0]}{token}; {flag} or codeq-cluster init names another")


def _profile(options: argparse.Namespace) -> Profile:
    variables: Mapping[str, str] = environment()
    return chosen(options.profile, variables)


def _listed(text: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(base_url(each.strip()) for each in text.split(","))
    except argparse.ArgumentTypeError as malformed:
        raise ConfigInvalid(f"{where}: {malformed}; separate several with commas") from None
