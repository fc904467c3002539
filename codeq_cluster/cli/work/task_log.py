"""Verb `task log`: what the workers of a task have said of it, and say."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.named import whole_id
from codeq_cluster.cli.support.output import cell, document, note
from codeq_cluster.cli.support.times import add_times, times_of
from codeq_cluster.client import Client, LogRecord, NotFinished

_LOOK_S = 1  # Between two looks; a task that ends cuts it short.
_LINE_CHARS_MAX = 1024  # All of a line, which has at most as many bytes.


def add(verbs: Verbs) -> None:
    """Add the verb."""
    log = verbs.add_parser("log", help="print what a task's workers have said of their work")
    log.add_argument("id")
    log.add_argument(
        "-f", "--follow", action="store_true", help="go on with what they say until the task ends"
    )
    add_times(log)
    asks(log, Client, _log)


async def _log(client: Client, options: argparse.Namespace) -> None:
    task_id = await whole_id(client, options.id)
    found = await client.log(task_id)
    if not options.follow:
        if options.json:
            document(found, compact=True)
        else:
            _print(found, options, after=0)
        return
    after = 0
    has_ended = False
    while True:
        _print(found, options, after=after)
        after = max(after, found.written)
        if has_ended:
            return
        with suppress(NotFinished):
            await client.wait(task_id, timeout_s=_LOOK_S)
            has_ended = True  # Its lines have come before its end.
        found = await client.log(task_id, after=after)


def _print(found: LogRecord, options: argparse.Namespace, *, after: int) -> None:
    """Print lines, each by itself; `after` is the number of the one that was printed last."""
    gone = found.lines[0].number - 1 - after if found.lines else found.written - after
    if gone > 0:
        note(f"{gone} lines are gone: a task keeps its last ones")
    for line in found.lines:
        if options.json:
            document(line, compact=True)
        else:
            text = cell(line.text, _LINE_CHARS_MAX) if line.text else ""
            print(f"{times_of(options).text(line.at)}  {line.attempt}  {text}".rstrip())
    sys.stdout.flush()  # A program that reads it follows, too.
