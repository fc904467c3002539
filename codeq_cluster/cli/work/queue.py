"""Command `queue`: show the sizes of queues, pause and resume them."""

from __future__ import annotations

import argparse

from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.output import document, listed, note, table
from codeq_cluster.client import Operator, Page

_COLUMNS = {
    "EVENT": "command",
    "READY": "ready",
    "DELAYED": "delayed",
    "IN PROGRESS": "inProgress",
    "DLQ": "dlq",
    "OLDEST READY (S)": "oldestReadySeconds",
    "PAUSED": "paused",
}


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "queue", "inspect, pause and resume queues", description=__doc__)
    found = verbs.add_parser("ls", aliases=["list"], help="list the queues")
    found.add_argument("-q", "--quiet", action="store_true", help="print only names")
    asks(found, Operator, _list)

    for verb, words, act in (
        ("inspect", "show a queue, and what its dead letters died of", _inspect),
        ("pause", "let nobody claim from a queue; leases that run go on", _pause),
        ("resume", "let a paused queue be claimed from again", _resume),
    ):
        parser = verbs.add_parser(verb, help=words)
        parser.add_argument("event", help="the tasks' command")
        asks(parser, Operator, act)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    rows = [{"paused": False, **row} for row in await operator.queues()]
    listed(options, Page(rows, ""), name="queues", columns=_COLUMNS)


async def _inspect(operator: Operator, options: argparse.Namespace) -> None:
    queue = await operator.queue(options.event)
    causes = await operator.death_causes(options.event)
    groups = causes.get("groups")
    died = [row for row in groups if isinstance(row, dict)] if isinstance(groups, list) else []
    if options.json:
        document({"paused": False, **queue, "deadLetterErrors": died}, compact=True)
        return
    table(tuple(_COLUMNS), [[queue.get(field, False) for field in _COLUMNS.values()]])
    if died:
        print()
        table(("DEAD LETTERS", "ERROR"), ((row.get("count"), row.get("error")) for row in died))


async def _pause(operator: Operator, options: argparse.Namespace) -> None:
    _turned(options, dict(await operator.pause(options.event)), "paused")


async def _resume(operator: Operator, options: argparse.Namespace) -> None:
    _turned(options, dict(await operator.resume(options.event)), "resumed")


def _turned(options: argparse.Namespace, answer: dict[str, object], word: str) -> None:
    if options.json:
        document(answer, compact=True)
        return
    print(options.event)
    note(f"{options.event} is {word}" + ("" if answer.get("changed") else ", as it was before"))
