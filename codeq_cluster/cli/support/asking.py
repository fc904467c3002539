"""Asking: the shared part of all commands that send one request to a cluster."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.target import (
    Caller,
    add_target,
    ca_of,
    say_default,
    token_of,
    urls_of,
)
from codeq_cluster.client import Client, Live, Operator

C = TypeVar("C", Client, Operator, Live)

# argparse has no public name for the result of its add_subparsers.
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001


def asks(
    parser: argparse.ArgumentParser,
    connection: type[C],
    act: Callable[[C, argparse.Namespace], Awaitable[Exit | None]],
    *,
    caller: Caller | None = None,
    deadline_s: float = 0,
    discover: bool = False,
) -> None:
    """Make a command run `act` with a connection to the cluster that its flags select.

    Args:
        parser: Gets the flags of `add_target`, and `--json`.
        connection: Opened for `act`.
        act: Sends the request and prints; None counts as `Exit.OK`.
        caller: The role that the command speaks as; default: producer for a `Client`, else admin.
        deadline_s: Of a request with its repetitions; 0 asks each node once, so that a person
            sees an error soon.
        discover: Learn the other nodes, and use them when those that were named are gone.
    """
    add_target(parser, caller or (Caller.PRODUCER if connection is Client else Caller.ADMIN))
    parser.add_argument("--json", action="store_true", help="print JSON, one line")

    async def answer(options: argparse.Namespace) -> Exit | None:
        opened = connection(
            urls_of(options),
            token=token_of(options),
            deadline_s=deadline_s,
            discover=discover,
            ca_file=ca_of(options),
        )
        async with opened:
            return await act(opened, options)

    def run(options: argparse.Namespace) -> Exit:
        say_default(options)
        return asyncio.run(answer(options)) or Exit.OK

    parser.set_defaults(run=run)


def add_verb(
    verbs: Verbs,
    connection: type[C],
    name: str,
    words: str,
    act: Callable[[C, argparse.Namespace], Awaitable[Exit | None]],
    *flags: str | Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add a verb that is no more than its flags and what `asks` makes of them.

    Args:
        name: The verb; `ls` is also `list`.
        words: Its line of help.
        flags: In the order of the help: names of required arguments, and functions that add flags.
    """
    parser = verbs.add_parser(name, aliases=["list"] if name == "ls" else [], help=words)
    for flag in flags:
        if isinstance(flag, str):
            parser.add_argument(flag)
        else:
            flag(parser)
    asks(parser, connection, act)


def verbs_of(commands: Verbs, name: str, words: str, *, description: str | None) -> Verbs:
    """Add a command with verbs, and return its list of verbs; `words` is its line of help."""
    parser = commands.add_parser(name, help=words, description=description)
    return parser.add_subparsers(dest="verb", required=True, metavar="VERB")
