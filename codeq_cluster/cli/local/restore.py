"""Command `restore`: create a new cluster's data directories from a backup."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from codeq_cluster.backup.catalogue import chosen, newest_export
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.backup.tenant_export import named_tenant
from codeq_cluster.cli.support.asking import Verbs
from codeq_cluster.cli.support.flags import number, runs
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import document, note
from codeq_cluster.cli.support.place import add_place, place_of
from codeq_cluster.cli.support.progress import bar
from codeq_cluster.codec.membership import NODE_ID
from codeq_cluster.core.sharding import SHARDS_MAX
from codeq_cluster.settings.kinds import ID


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "restore",
        help="create a node's data directory from a backup",
        description="Create the data directory of one node of a new cluster from a backup. Run it "
        "for every node before the first one starts, with the same backup and the same flags "
        "except --into and --node-id.",
    )
    add_place(parser, "--from", "where the backup is")
    parser.add_argument("--id", default="", help="of the backup; default: the newest")
    parser.add_argument(
        "--into", type=Path, required=True, metavar="DIR", help="the directory, empty or missing"
    )
    parser.add_argument(
        "--cluster-id", metavar="ID", help="of the new cluster; default: the backup's"
    )
    parser.add_argument("--node-id", required=True, metavar="ID", help="of the node")
    number(parser, "--shards", "of the new cluster; default: the backup's")
    parser.add_argument(
        "--tenant", metavar="NAME", help="only this one; `_` or default: the default tenant"
    )
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="PLACE",
        help="add the newest export of a place (see backup export); may be repeated",
    )
    parser.add_argument(
        "--forget-keys",
        action="store_true",
        help="drop idempotency keys that cannot be kept with this number of shards",
    )
    parser.add_argument(
        "--run-schedules",
        action="store_true",
        help="let schedules fire; without it they come paused: the old cluster may still run",
    )
    runs(parser, _run)


def _run(options: argparse.Namespace) -> Exit:
    place = place_of(options.place, options)
    first = RestoreSource(place=place, manifest=chosen(place, options.id))
    sources = [first]
    for name in options.imports:
        added = place_of(name, options)
        sources.append(RestoreSource(place=added, manifest=newest_export(added)))
    shards = first.manifest.shards if options.shards is None else options.shards
    if not 1 <= shards <= SHARDS_MAX:
        raise UsageRefused(f"--shards {shards}: must be 1 to {SHARDS_MAX}")
    for flag, name in (("--node-id", options.node_id), ("--cluster-id", options.cluster_id)):
        if name and not NODE_ID.fullmatch(name):
            raise UsageRefused(f"{flag} {name}: must be {ID.allowed}")
    wanted = Wanted(
        cluster_id=options.cluster_id or first.manifest.cluster_id,
        shards=shards,
        tenant=None if options.tenant is None else _tenant(sources, options.tenant),
        forget_keys=options.forget_keys,
        run_schedules=options.run_schedules,
    )
    with bar("restoring", sum(source.manifest.size for source in sources)) as shown:
        done = restore(
            sources, wanted, into=options.into, node_id=options.node_id, passed=shown.passed
        )
    if options.json:
        document(
            {
                "into": str(options.into),
                "clusterId": wanted.cluster_id,
                "nodeId": options.node_id,
                "shards": shards,
                "backups": [source.manifest.id for source in sources],
                "index": done.index,
                "term": done.term,
                "tasks": done.tasks,
                "rows": done.rows,
                "forgottenKeys": done.forgotten_keys,
                "unreadable": done.unreadable,
            },
            compact=True,
        )
        return Exit.OK
    print(options.into)
    note(f"{done.tasks} tasks on {shards} shards, from {first.manifest.id}")
    if done.forgotten_keys:
        note(f"{done.forgotten_keys} idempotency keys are left out")
    if done.unreadable:
        note(f"{done.unreadable} records cannot be read and are left out; the log names them")
    note("restore every node before the first one starts")
    return Exit.OK


def _tenant(sources: Sequence[RestoreSource], shown: str) -> str:
    """Return the shown name of a tenant; one that is called default comes before the nickname."""
    names = {named_tenant(each.place, each.manifest, shown) for each in sources}
    return shown if shown in names else names.pop()
