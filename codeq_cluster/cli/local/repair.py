"""Command `repair`: report damage in a stopped node's data, and set the data aside."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from codeq_cluster.cli.support.asking import Verbs
from codeq_cluster.cli.support.consent import add_consent, consented
from codeq_cluster.cli.support.flags import runs
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import document, note
from codeq_cluster.cli.support.progress import waiting
from codeq_cluster.errors import DataDirectoryRefused
from codeq_cluster.offline.check import Examined, examined
from codeq_cluster.storage.directory import aside_path, set_aside


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "repair",
        help="set a stopped node's damaged data aside",
        description="Read all of a stopped node's data directory and report damage. With --yes, "
        "move the data aside within the directory, without deleting anything. The node then "
        "counts as one that lost its disk, and gets its data from its peers. Never copy the old "
        "data back.",
    )
    parser.add_argument(
        "--data-dir", type=Path, required=True, metavar="DIR", help="of the stopped node"
    )
    add_consent(parser, otherwise="report damage")
    parser.add_argument(
        "--force",
        action="store_true",
        help="do it even if no damage is found, or no peer may hold the same data",
    )
    runs(parser, _run)


def _run(options: argparse.Namespace) -> Exit:
    path: Path = options.data_dir
    with ExitStack() as held:
        with waiting(f"reading {path}"):
            found = held.enter_context(examined(path))
        aside = aside_path(path)
        against = _against(found)
        doing = consented(options)
        done = doing and (options.force or not against)
        if done:
            set_aside(path, aside)
    if options.json:
        document(
            {
                "dataDir": str(path),
                "nodeId": found.identity.node_id if found.identity else None,
                "damages": list(found.damages),
                "against": against,
                "setAside": str(aside) if done else None,
            },
            compact=True,
        )
    else:
        for line in found.damages:
            print(line)
    if done:
        note(f"set aside in {aside}; nothing is deleted")
        return Exit.OK
    for line in against:
        note(f"against it: {line}")
    if against and doing:
        raise DataDirectoryRefused(f"{path} is left as it is; --force sets it aside all the same")
    note(f"{path} would be set aside in {aside.name}; add --yes{' --force' * bool(against)}")
    return Exit.OK if options.dry_run or not found.damages else Exit.ERROR


def _against(found: Examined) -> list[str]:
    """Return the reason to leave the data where it is; empty if there is none."""
    whole = [] if found.damages else ["nothing is wrong with it, as far as can be read"]
    return [*whole, *found.risks]
