"""Command `init`: save a cluster's address and tokens as a profile for all other commands.

On a terminal, it asks for each value that has no flag; an empty answer keeps the old value. The
profile then becomes the current one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from rich.prompt import Prompt

from codeq_cluster.cli.support import profiles
from codeq_cluster.cli.support.asking import Verbs
from codeq_cluster.cli.support.flags import runs
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import document, note, notes
from codeq_cluster.cli.support.profiles import Profile
from codeq_cluster.cli.support.progress import waiting
from codeq_cluster.cli.support.target import base_url
from codeq_cluster.client import Probe, Refused, Unreachable
from codeq_cluster.client.transport import trust

_TIMEOUT_S = 5.0
_URL = "http://127.0.0.1:8080"


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "init", help="save a cluster's address and tokens as a profile", description=__doc__
    )
    parser.add_argument(
        "--profile", metavar="NAME", help=f"default: the current one, else {profiles.DEFAULT}"
    )
    parser.add_argument(
        "--url",
        "--base-url",
        action="append",
        type=base_url,
        metavar="URL",
        help="base URL of a node; may be repeated",
    )
    parser.add_argument("--token", help="for all commands without one of the three below")
    parser.add_argument("--producer-token", metavar="TOKEN", help="for `task` and `bench`")
    parser.add_argument("--worker-token", metavar="TOKEN", help="for `worker` and `bench`")
    parser.add_argument("--operator-token", metavar="TOKEN", help="for `cluster` and `backup`")
    parser.add_argument(
        "--ca", type=Path, metavar="FILE", help="PEM file of the authorities trusted for https"
    )
    parser.add_argument("--no-prompt", action="store_true", help="do not ask, even on a terminal")
    runs(parser, _run)


def _run(options: argparse.Namespace) -> Exit:
    kept = profiles.read()
    name = options.profile or kept.current or profiles.DEFAULT
    if not name.isprintable() or name.strip() != name:
        raise UsageRefused("--profile: must be a name without spaces around it")
    before = kept.get(name) if name in kept.names else Profile()
    profile = _from_flags(options, before)
    if not options.no_prompt and sys.stdin.isatty():
        profile = _prompted(profile, options)
    if not profile.base_url:
        raise UsageRefused("no address; name a node, as: codeq-cluster init --url http://HOST:8080")
    kept.put(name, profile)
    kept.current = name
    kept.write()
    if options.json:
        document({"profile": name, "file": str(kept.file)}, compact=True)
    else:
        print(name)
        note(f"profile {name} is saved in {kept.file} and is now the current one")
    with waiting("asking the cluster"):
        found = asyncio.run(_looked(profile))
    note(found)
    return Exit.OK


def _from_flags(options: argparse.Namespace, before: Profile) -> Profile:
    if options.ca:
        trust(options.ca)  # Refuse it now, or every later command would fail on it.
    given = {
        "base_url": ",".join(options.url or ()),
        "token": options.token,
        "producer_token": options.producer_token,
        "worker_token": options.worker_token,
        "operator_token": options.operator_token,
        # Commands run from any directory.
        "ca_file": str(options.ca.expanduser().absolute()) if options.ca else "",
    }
    return replace(before, **{field: value for field, value in given.items() if value})


def _prompted(profile: Profile, options: argparse.Namespace) -> Profile:
    """Ask for each value without a flag; tokens are not echoed."""
    address = profile.base_url
    while not options.url:
        answer = Prompt.ask("Base URL", default=address or _URL, console=notes())
        try:
            address = ",".join(base_url(each.strip()) for each in answer.split(","))
            break
        except argparse.ArgumentTypeError as malformed:
            note(f"{malformed}; separate several with commas")
    tokens = {
        field: Prompt.ask(
            f"{words} (optional{', as before' if getattr(profile, field) else ''})",
            password=True,
            default="",
            show_default=False,
            console=notes(),
        ).strip()
        for field, words in (
            ("token", "Token for everything"),
            ("producer_token", "Producer token"),
            ("worker_token", "Worker token"),
            ("operator_token", "Operator token"),
        )
        if getattr(options, field) is None
    }
    given = {field: token for field, token in tokens.items() if token}
    return replace(profile, base_url=address, **given)


async def _looked(profile: Profile) -> str:
    """Report whether the cluster answers; a profile is saved even if it does not run yet."""
    url = profile.base_url.split(",")[0]
    token = (
        profile.token or profile.producer_token or profile.worker_token or profile.operator_token
    )
    ca = Path(profile.ca_file) if profile.ca_file else None
    async with Probe(url, token=token, timeout_s=_TIMEOUT_S, ca_file=ca) as probe:
        try:
            await probe.raft_status()
        except (Refused, Unreachable) as error:
            return f"{url} does not take it now: {error}; see codeq-cluster doctor"
    return f"{url} answers and takes the token; go on with: codeq-cluster status"
