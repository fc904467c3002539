"""Command `cluster recover`: continue with one node when the majority is lost for good."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from codeq_cluster.cli.support.asking import Verbs
from codeq_cluster.cli.support.consent import add_consent, consented
from codeq_cluster.cli.support.flags import runs
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import document, note, table

if TYPE_CHECKING:
    from codeq_cluster.offline.inspect import Stand


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "recover",
        help="continue with one node when the majority is lost for good",
        description="Make a stopped node the only member of its cluster, if a majority is lost for "
        "good. Entries that only the lost nodes had are lost. Without --yes it reports what is at "
        "risk and changes nothing. Run it for a single node: the one whose logs are the longest.",
    )
    parser.add_argument("data", type=Path, metavar="DATA_DIR", help="of the stopped node")
    add_consent(parser, otherwise="report what is at risk")
    runs(parser, _run)


def _run(options: argparse.Namespace) -> Exit:
    # Import late: the other verbs of `cluster` need no library of the broker.
    from codeq_cluster.offline.force_single_member import survivor  # noqa: PLC0415
    from codeq_cluster.offline.inspect import stopped_node  # noqa: PLC0415

    with stopped_node(options.data) as node:
        _show(node.identity.node_id, list(node.stands()), options)
    if not consented(options):
        note("nothing is changed; --yes makes this node the only member of its cluster")
        return Exit.OK if options.dry_run else Exit.ERROR
    with survivor(options.data) as last:
        last.recover()
    note(
        "done: start it, add new nodes with cluster join, and never start one of the old nodes "
        "with its old data"
    )
    return Exit.OK


def _show(node_id: str, stands: list[Stand], options: argparse.Namespace) -> None:
    if options.json:
        shards = [
            {
                "shard": stand.shard,
                "agreedUpTo": stand.applied,
                "keptUpTo": stand.last,
                "voters": stand.voters,
            }
            for stand in stands
        ]
        document({"nodeId": node_id, "shards": shards}, compact=True)
        return
    table(
        ("SHARD", "VOTERS", "AGREED ON UP TO", "KEPT, PERHAPS NEVER ACKNOWLEDGED", "LOST IF ANY"),
        (
            [
                stand.shard,
                " ".join(stand.voters),
                stand.applied,
                f"{stand.applied + 1} to {stand.last}" if stand.last > stand.applied else "none",
                f"from {stand.last + 1} on",
            ]
            for stand in stands
        ),
    )
