"""Command `profile`: list, choose and remove the profiles that `init` saved."""

from __future__ import annotations

import argparse

from codeq_cluster.cli.support import profiles
from codeq_cluster.cli.support.asking import Verbs, verbs_of
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import document, note, table


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "profile", "list, choose and delete profiles", description=__doc__)
    listing = verbs.add_parser("ls", aliases=["list"], help="list the profiles; tokens are hidden")
    listing.set_defaults(run=_list)
    use = verbs.add_parser("use", help="make a profile the current one")
    use.set_defaults(run=_use)
    delete = verbs.add_parser("delete", help="delete a profile and the tokens in it")
    delete.set_defaults(run=_delete)
    for verb in (use, delete):
        verb.add_argument("name")
    for verb in (listing, use, delete):
        verb.add_argument("--json", action="store_true", help="print JSON, one line")


def _list(options: argparse.Namespace) -> Exit:
    kept = profiles.read()
    rows = []
    for name in kept.names:
        profile = kept.get(name)
        held = (
            ("all", profile.token),
            ("producer", profile.producer_token),
            ("worker", profile.worker_token),
            ("operator", profile.operator_token),
        )
        rows.append(
            {
                "profile": name,
                "current": name == kept.current,
                "baseUrl": profile.base_url,
                "tokens": [of for of, token in held if token],
                "caFile": profile.ca_file,
            }
        )
    if options.json:
        document({"profiles": rows, "file": str(kept.file)}, compact=True)
        return Exit.OK
    table(
        ("PROFILE", "CURRENT", "BASE URL", "TOKENS", "CA FILE"), ([*row.values()] for row in rows)
    )
    if not rows:
        note(f"no profiles in {kept.file}; make one with: codeq-cluster init")
    return Exit.OK


def _use(options: argparse.Namespace) -> Exit:
    kept = profiles.read()
    kept.get(options.name)
    kept.current = options.name
    kept.write()
    _told(options, "current", f"profile {options.name} is the current one")
    return Exit.OK


def _delete(options: argparse.Namespace) -> Exit:
    kept = profiles.read()
    kept.delete(options.name)
    kept.write()
    left = "" if kept.current else "; none is current: codeq-cluster profile use NAME"
    _told(options, "deleted", f"profile {options.name} is deleted{left}")
    return Exit.OK


def _told(options: argparse.Namespace, what: str, words: str) -> None:
    if options.json:
        document({"profile": options.name, what: True}, compact=True)
    else:
        print(options.name)
        note(words)
