"""Command `cluster upgrade`: enable newer formats."""

from __future__ import annotations

import argparse

from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.output import document, note, rows_of, table
from codeq_cluster.cli.support.target import Caller
from codeq_cluster.client import Operator


def add(verbs: Verbs) -> None:
    """Add the verb."""
    upgrade = verbs.add_parser(
        "upgrade",
        help="enable the formats of the running release",
        description="Enable the formats of the release that every node runs now. Refused while a "
        "node does not know them. Before it, nodes can return to the earlier release one by one; "
        "afterwards they cannot.",
    )
    number(upgrade, "--level", "default: the newest that any node knows")
    upgrade.add_argument(
        "--dry-run", action="store_true", help="only show what it would do to each shard"
    )
    asks(upgrade, Operator, _upgrade, caller=Caller.OPERATOR)


async def _upgrade(operator: Operator, options: argparse.Namespace) -> None:
    answer = await operator.upgrade(options.level, dry_run=options.dry_run)
    if options.json:
        document(answer, compact=True)
        return
    table(
        ("NODE", "KNOWS LEVEL"),
        ([row.get("id"), row.get("level")] for row in rows_of(answer.get("nodes"))),
    )
    print()
    table(
        ("SHARD", "LEADER", "LEVEL", "LEVEL AFTER"),
        (
            [row.get(name) for name in ("shard", "leader", "level", "levelAfter")]
            for row in rows_of(answer.get("shards"))
        ),
    )
    level = answer.get("level")
    if options.dry_run:
        note(f"nothing is changed; without --dry-run, formats of level {level} would be in use")
    elif answer.get("changed"):
        note(f"formats of level {level} are in use: no release that does not know them comes back")
    else:
        note(f"formats of level {level} were in use already")
