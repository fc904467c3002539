"""Tail of tasks: what happens to the selected ones, each change as it happens."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from codeq_cluster.cli.operate.events import Event
from codeq_cluster.cli.support.outcome import UsageRefused
from codeq_cluster.cli.support.output import cell
from codeq_cluster.client import EventKind, Live, TaskEvent

_GIVE_UP_S = 300.0  # No node answered.
_SELECTING = ("task", "tag", "task_command", "group", "after")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select tasks."""
    tasks = parser.add_argument_group(
        "tasks", "With one of these, each change of the selected tasks is a line, and nothing else."
    )
    tasks.add_argument("--task", default="", metavar="ID", help="follow this task")
    tasks.add_argument(
        "--tag",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="follow the tasks with this tag; may be repeated, for those with all of them",
    )
    tasks.add_argument(
        "--command",
        dest="task_command",
        default="",
        metavar="COMMAND",
        help="follow this queue's tasks",
    )
    tasks.add_argument("--group", default="", metavar="ID", help="follow the members of a group")
    tasks.add_argument(
        "--after", default="", metavar="CURSOR", help="go on after an event's `cursor`, from --json"
    )


def is_asked(options: argparse.Namespace) -> bool:
    """Return whether tasks are selected."""
    return any(getattr(options, name) for name in _SELECTING)


async def follow(live: Live, options: argparse.Namespace, say: Callable[[Event], None]) -> None:
    """Tell every change of the selected tasks, for ever, from whichever node serves."""
    stream = live.events(
        command=options.task_command,
        tags=_tags(options.tag),
        task_id=options.task,
        group_id=options.group,
        kinds=options.kind or (),
        after=options.after,
        within_s=_GIVE_UP_S,
    )
    async with aclosing(stream) as events:
        async for event in events:
            if options.json:
                print(json.dumps(_row(event), ensure_ascii=False), flush=True)
            else:
                say(Event(at=event.at, kind=event.kind, text=_text(event)))


def check(options: argparse.Namespace) -> None:
    """Refuse kinds that tasks do not have, and what is no tag."""
    unknown = set(options.kind or ()) - set(EventKind)
    if unknown:
        raise UsageRefused(f"--kind {min(unknown)}: of tasks, use {', '.join(EventKind)}")
    _tags(options.tag)


def _tags(texts: list[str]) -> Mapping[str, str]:
    pairs = [text.partition(":") for text in texts]
    for text, (name, _, value) in zip(texts, pairs, strict=True):
        if not name or not value:
            raise UsageRefused(f"--tag {text}: must be NAME:VALUE")
    return {name: value for name, _, value in pairs}


def _row(event: TaskEvent) -> Mapping[str, Any]:
    row: Mapping[str, Any] = msgspec.to_builtins(event)
    return row


def _text(event: TaskEvent) -> str:
    text = f"{cell(event.task_id)} of {cell(event.command)}"
    if event.attempts:
        text += f", attempt {event.attempts}"
    if event.worker_id:
        text += f", by {cell(event.worker_id)}"
    if event.progress is not None and event.kind == EventKind.UPDATED:
        said = event.progress
        text += f", {said.done}/{said.total}" if said.total else f", {said.done}"
        text += f" {cell(said.note)}" if said.note else ""
    return f"{text}: {cell(event.error)}" if event.error else text
