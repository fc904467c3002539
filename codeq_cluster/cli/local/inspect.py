"""Command `inspect`: look into the data directory of a stopped node."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from codeq_cluster.cli.support.asking import Verbs
from codeq_cluster.cli.support.flags import runs
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import add_limit, check_limit, document, note, table
from codeq_cluster.cli.support.times import add_times, instant, times_of
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import KIND_OF, Item
from codeq_cluster.core.task import Task
from codeq_cluster.offline.inspect import Logged, StoppedNode, decoded, stopped_node

_Row = dict[str, object]

_KEYS_SHOWN = 20
_COLUMNS = {
    "tasks": ("ID", "SHARD", "TENANT", "COMMAND", "STATE", "ATTEMPTS", "WORKER", "UPDATED"),
    "queues": (
        *("QUEUE", "SHARD", "TENANT", "READY", "DELAYED", "LEASED", "DEAD", "DONE", "FAILED"),
        *("HELD", "BYTES"),
    ),
    "items": ("ID", "SHARD", "TENANT", "KIND"),
    "log": ("INDEX", "SHARD", "TERM", "KIND", "VERSION", "CLOCK", "ROWS", "KEYS"),
}


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "inspect",
        help="look into a stopped node's data directory",
        description="Look into the data directory of a stopped node, without changing it. Without "
        "one of the flags below, it prints a summary of each shard.",
    )
    parser.add_argument("data", type=Path, metavar="DATA_DIR")
    what = parser.add_mutually_exclusive_group()
    for name, words in (
        ("tasks", "the tasks, without payloads"),
        ("queues", "the queues' counters"),
        ("items", "topics, pauses, subscriptions, deliveries, sweeps and the audit"),
        ("log", "the entries of the log"),
    ):
        what.add_argument(f"--{name}", dest="what", action="store_const", const=name, help=words)
    what.add_argument("--key", metavar="KEY", help="one row, such as codeq/payload/ID")
    parser.add_argument("--shard", type=int, metavar="N", help="only of this shard")
    add_limit(parser)
    add_times(parser)
    runs(parser, _run)


def _run(options: argparse.Namespace) -> Exit:
    check_limit(options)
    with stopped_node(options.data) as node:
        shards = node.identity.shards
        if options.shard is not None and not 0 <= options.shard < shards:
            raise UsageRefused(f"--shard {options.shard}: must be 0 to {shards - 1}")
        if options.key is not None:
            return _row(node, options)
        if options.what is None:
            _summary(node, options)
            return Exit.OK
        rows = list(islice(_listed(node, options), options.limit + 1))
    more = len(rows) > options.limit
    _show(options.what, rows[: options.limit], options)
    if more:
        note(f"there are more than {options.limit}; see --limit and --shard")
    return Exit.OK


def _listed(node: StoppedNode, options: argparse.Namespace) -> Iterator[_Row]:
    """Yield the selected records of the selected shard, ready for JSON."""
    listing: Iterable[_Row]
    match options.what:
        case "tasks":
            listing = (_task(shard, task) for shard, task in node.tasks())
        case "queues":
            listing = (
                {"queue": queue, "shard": shard, "tenant": tenant or "_", **asdict(counters)}
                for shard, queue, tenant, counters in node.queues()
            )
        case "items":
            listing = (_item(shard, item) for shard, item in node.items())
        case _:
            listing = (_entry(shard, entry) for shard, entry in node.log())
    return (row for row in listing if options.shard in (None, row["shard"]))


def _task(shard: int, task: Task) -> _Row:
    fields = {name: _named(value) for name, value in asdict(task).items()}
    shown = {name: value for name, value in fields.items() if value not in ("", 0, [], False)}
    return shown | {"shard": shard, "tenant": task.tenant or "_", "state": task.state.name}


def _item(shard: int, item: Item) -> _Row:
    return {name: _named(value) for name, value in asdict(item).items()} | {
        "shard": shard,
        "tenant": item.tenant or "_",
        "kind": KIND_OF[type(item)].value,
    }


def _entry(shard: int, entry: Logged) -> _Row:
    return {
        "index": entry.index,
        "shard": shard,
        "term": entry.term,
        "kind": entry.kind,
        "version": entry.version,
        "clock": rfc3339(entry.clock_ms) if entry.clock_ms else "",
        "rows": len(entry.keys),
        "keys": [_text(key) for key in entry.keys[:_KEYS_SHOWN]],
    }


def _show(what: str, rows: list[_Row], options: argparse.Namespace) -> None:
    if options.json:
        document({what: rows}, compact=True)
        return
    table(_COLUMNS[what], (_cells(what, row) for row in rows), times=times_of(options))


def _cells(what: str, row: _Row) -> list[object]:
    match what:
        case "tasks":
            names = ("id", "shard", "tenant", "command", "state")
            updated: Any = row["updated_ms"]
            return [
                *(row[name] for name in names),
                row.get("attempts", 0),
                row.get("worker", ""),
                instant(rfc3339(updated)),
            ]
        case "queues":
            places = (
                *("ready", "delayed", "leased", "dead", "done", "failed"),
                *("held", "stored_bytes"),
            )
            return [row[name] for name in ("queue", "shard", "tenant", *places)]
        case "items":
            return [row[name] for name in ("id", "shard", "tenant", "kind")]
        case _:
            before = ("index", "shard", "term", "kind", "version")
            rest = (row["rows"], row["keys"])
            return [*(row[name] for name in before), instant(row["clock"]), *rest]


def _summary(node: StoppedNode, options: argparse.Namespace) -> None:
    identity = node.identity
    shards = [each for each in node.summaries() if options.shard in (None, each.shard)]
    if options.json:
        shown = {
            "clusterId": identity.cluster_id,
            "nodeId": identity.node_id,
            "shards": msgspec.to_builtins(shards),
        }
        document(shown, compact=True)
        return
    print(f"node {identity.node_id} of cluster {identity.cluster_id}, {identity.shards} shards")
    print()
    table(
        ("SHARD", "APPLIED", "TERM", "LOG", "VOTE", "TASKS", "ITEMS", "ROWS", "DIGEST"),
        (
            [
                each.shard,
                each.applied,
                each.term,
                f"{each.log_first}..{each.log_last}",
                f"{each.vote_term} {each.voted_for or '-'}",
                each.rows.get("task", 0),
                each.rows.get("item", 0),
                sum(each.rows.values()),
                each.digest,
            ]
            for each in shards
        ),
    )


def _row(node: StoppedNode, options: argparse.Namespace) -> Exit:
    key = str(options.key).encode()
    found = [
        {"shard": shard, "key": options.key, "value": _named(decoded(key, value))}
        for shard, value in node.row(key)
        if options.shard in (None, shard)
    ]
    if not found:
        note(f"there is no row {options.key}")
        return Exit.ERROR
    for row in found:
        document(row, compact=options.json)
    return Exit.OK


def _named(value: object) -> object:
    """Return a record with the names of its fields, which are not stored."""
    match value:
        case Struct():
            return {name: _named(field) for name, field in asdict(value).items()}
        case tuple() | list():
            return [_named(each) for each in value]
        case _:
            return value


def _text(key: bytes) -> str:
    """Return a key as text, with bytes that are not text in hexadecimal."""
    return key.decode("ascii", "backslashreplace")
