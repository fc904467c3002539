"""Command `backup`: take, list, check and delete backups, and export one tenant."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence

from rich.progress import BarColumn, Progress, TextColumn

from codeq_cluster.backup import catalogue
from codeq_cluster.backup.manifest import BackupManifest
from codeq_cluster.backup.tenant_export import export, named_tenant, tenants_of
from codeq_cluster.backup.tenant_rows import DEFAULT_TENANT
from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, consented, withheld
from codeq_cluster.cli.support.flags import number, runs
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import document, note, notes, table
from codeq_cluster.cli.support.place import add_place, place_of
from codeq_cluster.cli.support.progress import bar
from codeq_cluster.cli.support.target import Caller
from codeq_cluster.cli.support.times import add_times, dated, times_of
from codeq_cluster.client import Operator
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.errors import BackupFailed

_POLL_S = 0.2
_KEEP_DEFAULT = 7


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "backup", "take, list, check and prune backups", description=__doc__)
    create = verbs.add_parser(
        "create",
        help="take a backup to the place in a node's configuration",
        description="Take a backup of the whole cluster to the place in a node's configuration "
        "(backup.directory or backup.s3), and wait until it is verified.",
    )
    create.add_argument("--no-wait", action="store_true", help="print the id and end")
    asks(create, Operator, _create, caller=Caller.OPERATOR)

    listing = verbs.add_parser(
        "ls",
        aliases=["list"],
        help="list the backups of a node, or of a place",
    )
    add_times(listing)
    asks(listing, Operator, _list_of_node, caller=Caller.OPERATOR)
    add_place(
        listing,
        "--in",
        "their place; default: that of the node asked",
        required=False,
    )
    of_node = listing.get_default("run")

    def run(options: argparse.Namespace) -> Exit:
        done: Exit = of_node(options) if options.place is None else _list(options)
        return done

    listing.set_defaults(run=run)

    verify = verbs.add_parser("verify", help="read a whole backup and check it")
    _add_id(verify)
    add_place(verify, "--in", "where it is")
    runs(verify, _verify)

    prune = verbs.add_parser("prune", help="delete all but the newest backups")
    add_place(prune, "--in", "where they are")
    number(
        prune,
        "--keep",
        f"complete backups to keep, at least 1; default: {_KEEP_DEFAULT}",
        default=_KEEP_DEFAULT,
    )
    add_consent(prune, otherwise="list them")
    runs(prune, _prune)

    tenants = verbs.add_parser("tenants", help="list the tenants of a backup")
    _add_id(tenants)
    add_place(tenants, "--in", "where it is")
    runs(tenants, _tenants)

    tenant = verbs.add_parser(
        "export",
        help="extract one tenant of a backup into a backup",
        description="Extract one tenant of a backup into a backup; `restore --import` adds it to "
        "another cluster's.",
    )
    _add_id(tenant)
    add_place(tenant, "--in", "where it is")
    tenant.add_argument(
        "--tenant", required=True, metavar="NAME", help="`_` or default: the default tenant"
    )
    tenant.add_argument("--to", required=True, metavar="PLACE", help="the place of the export")
    runs(tenant, _export)


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", default="", metavar="ID", help="default: the newest")


async def _create(operator: Operator, options: argparse.Namespace) -> None:
    begun = await operator.begin_backup()
    backup = str(begun.get("id"))
    shown = begun if options.no_wait else await _ended(operator, backup)
    if options.json:
        document(shown, compact=True)
    else:
        print(backup)
    if shown.get("status") == "FAILED":
        raise BackupFailed(f"backup {backup} failed: {shown.get('error')}")
    if not options.no_wait:
        note(f"{shown.get('tasks')} tasks of {shown.get('shards')} shards, verified")
    deleted = shown.get("deleted")
    if isinstance(deleted, list) and deleted:
        note(f"deleted old backups: {', '.join(map(str, deleted))}")


async def _ended(operator: Operator, backup: str) -> Mapping[str, object]:
    """Poll until a backup has ended, with a bar on a terminal."""
    console = notes()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[size]}"))
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        shown = progress.add_task("begun", total=None, size="")
        while True:
            answer = await operator.backup(backup)
            if answer.get("status") in ("DONE", "FAILED"):
                return answer
            progress.update(
                shown,
                description=str(answer.get("status", "")).lower(),
                total=_number(answer, "shards"),
                completed=_number(answer, "shardsDone"),
                size=f"{_number(answer, 'bytes') / 2**20:.1f} MiB",
            )
            await asyncio.sleep(_POLL_S)


async def _list_of_node(operator: Operator, options: argparse.Namespace) -> None:
    _print_list(await operator.backups(), options)


def _list(options: argparse.Namespace) -> Exit:
    found = catalogue.found(place_of(options.place, options))
    rows: list[Mapping[str, object]] = [
        {"id": each.id, "complete": False, "problem": each.problem}
        if each.manifest is None
        else _shown(each.manifest)
        for each in found
    ]
    _print_list(rows, options)
    return Exit.OK


def _print_list(rows: Sequence[Mapping[str, object]], options: argparse.Namespace) -> None:
    if options.json:
        document({"backups": rows}, compact=True)
        return
    fields = ("id", "startedAt", "clusterId", "node", "shards", "tasks", "bytes", "tenant")
    table(
        ("ID", "STARTED", "CLUSTER", "NODE", "SHARDS", "TASKS", "BYTES", "TENANT", "PROBLEM"),
        ([row.get(field) for field in (*fields, "problem")] for row in map(dated, rows)),
        times=times_of(options),
    )


def _verify(options: argparse.Namespace) -> Exit:
    place = place_of(options.place, options)
    manifest = catalogue.chosen(place, options.id)
    with bar("verifying", manifest.size) as shown:
        unreadable = catalogue.verify(place, manifest, passed=shown.passed)
    _print(manifest, options)
    if unreadable:
        note(f"{unreadable} records cannot be read; the cluster held them so, a restore omits them")
    return Exit.OK


def _prune(options: argparse.Namespace) -> Exit:
    if options.keep < 1:
        raise UsageRefused(f"--keep {options.keep}: must be 1 or more")
    place = place_of(options.place, options)
    old = catalogue.prunable(place, keep=options.keep, now_ms=_now_ms())
    doing = consented(options)
    if doing:
        for each in old:
            place.delete(each.id)
    if options.json:
        document({"deleted": doing, "backups": [each.id for each in old]}, compact=True)
    else:
        for each in old:
            print(each.id)
    if not old:
        note(f"nothing to delete beyond the newest {options.keep}")
    if doing or not old:
        return Exit.OK
    return withheld(options, what=f"{len(old)} backup{'s' * (len(old) > 1)}", done="deleted")


def _tenants(options: argparse.Namespace) -> Exit:
    place = place_of(options.place, options)
    manifest = catalogue.chosen(place, options.id)
    with bar("reading", manifest.size) as shown:
        found = tenants_of(place, manifest, passed=shown.passed)
    if options.json:
        rows = [{"tenant": name, "tasks": tasks} for name, tasks in found.items()]
        document({"id": manifest.id, "tenants": rows}, compact=True)
    else:
        table(("TENANT", "TASKS"), found.items())
        if DEFAULT_TENANT in found:
            note("_ is the default tenant")
    return Exit.OK


def _export(options: argparse.Namespace) -> Exit:
    place = place_of(options.place, options)
    manifest = catalogue.chosen(place, options.id)
    into = place_of(options.to, options, new=True)
    with bar("exporting", manifest.size) as shown:
        made = export(
            place,
            manifest,
            tenant=named_tenant(place, manifest, options.tenant),
            into=into,
            now_ms=_now_ms(),
            passed=shown.passed,
        )
    _print(made, options)
    return Exit.OK


def _print(manifest: BackupManifest, options: argparse.Namespace) -> None:
    if options.json:
        document(_shown(manifest), compact=True)
        return
    print(manifest.id)
    note(f"{manifest.tasks} tasks of {manifest.shards} shards, {manifest.size} bytes")


def _shown(manifest: BackupManifest) -> dict[str, object]:
    shown: dict[str, object] = {
        "id": manifest.id,
        "complete": True,
        "clusterId": manifest.cluster_id,
        "node": manifest.node_id,
        "startedAt": rfc3339(manifest.created_ms),
        "shards": manifest.shards,
        "tasks": manifest.tasks,
        "bytes": manifest.size,
    }
    if manifest.tenant is not None:
        shown["tenant"] = manifest.tenant
    return shown


def _number(answer: Mapping[str, object], name: str) -> int:
    value = answer.get(name)
    return value if isinstance(value, int) else 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
