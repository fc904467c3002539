"""Verbs `schedule put` and `schedule apply`: one schedule from flags, or a set from a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.flags import given_json, number
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import document, note, show
from codeq_cluster.cli.support.times import add_times, given_instant
from codeq_cluster.client import Applied, Operator

CRON_HELP = 'five fields, as "30 2 * * MON-FRI"; six with seconds first; or @daily and its kin'

_OVERLAPS = ("skip", "queueOne", "queue", "allow", "cancel")
_POLICIES = ("one", "all", "skip")
_Schedule: TypeAlias = dict[str, Raw]

T = TypeVar("T")


def add_zone(parser: argparse.ArgumentParser, *, instead_of: str) -> None:
    """Add the flags of a calendar, but for its cron expression."""
    parser.add_argument("--zone", help="its time zone, as Europe/Berlin; default: UTC")
    parser.add_argument(
        "--every", metavar="DURATION", help=f"an interval instead of {instead_of}, as 15m or 1h30m"
    )
    parser.add_argument(
        "--offset", metavar="DURATION", help="how far it is behind multiples of --every"
    )


def add_overlap(parser: argparse.ArgumentParser, *, otherwise: str) -> None:
    """Add the flag of what happens while another run is open; `otherwise` holds without it."""
    parser.add_argument(
        "--overlap",
        choices=_OVERLAPS,
        help=f"what happens while another run has not ended; default: {otherwise}",
    )


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    put = verbs.add_parser(
        "put",
        help="create a schedule or change it",
        description="Create a schedule or change it. What has no flag gets the broker's default, "
        "even if it was set before. What has fired does not fire again.",
    )
    put.add_argument("id", help="its name")
    put.add_argument(
        "-f", "--file", metavar="FILE", help="JSON object, or - for stdin, for the flags"
    )
    put.add_argument("--cron", help=CRON_HELP)
    add_zone(put, instead_of="--cron")
    put.add_argument(
        "--command", dest="task_command", metavar="NAME", help="what the task of each run is to do"
    )
    put.add_argument("--payload", metavar="JSON", help="its payload, or - for stdin; default: {}")
    number(put, "--priority", "its priority, 0 to 9")
    add_overlap(put, otherwise="skip")
    put.add_argument(
        "--missed", choices=_POLICIES, help="which of the late instants fire; default: one"
    )
    number(put, "--missed-window", "later ones never fire; default: a day", metavar="SECONDS")
    number(put, "--jitter", "each instant fires up to so much later", metavar="SECONDS")
    for flag, words in (
        ("--start-at", "no instant before, RFC 3339"),
        ("--end-at", "no instant from then on"),
    ):
        put.add_argument(flag, type=given_instant, metavar="TIME", help=words)
    number(put, "--max-runs", "it fires so often; default: for ever")
    number(put, "--pause-after-failures", "so many failed runs in a row pause it; default: never")
    put.add_argument("--note", help="for people")
    add_times(put)
    asks(put, Operator, _put)

    apply = verbs.add_parser(
        "apply",
        help="make the schedules of an owner those of a file",
        description="Make the schedules of an owner exactly those of a file, a JSON array of "
        "schedules with their ids: create, change and, with --prune, remove.",
    )
    apply.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="JSON array, or - for stdin"
    )
    apply.add_argument("--owner", required=True, metavar="NAME", help="of the set")
    number(apply, "--revision", "of the set; refused when a later one stands", default=0)
    apply.add_argument(
        "--prune", action="store_true", help="remove the owner's schedules that are not in the file"
    )
    apply.add_argument("--dry-run", action="store_true", help="only print what would change")
    asks(apply, Operator, _apply)


async def _put(operator: Operator, options: argparse.Namespace) -> None:
    show(options, await operator.put_schedule({**_schedule(options), "id": options.id}))


async def _apply(operator: Operator, options: argparse.Namespace) -> Exit:
    schedules = _read(options.file, list[_Schedule], "a JSON array of schedules")
    revision = options.revision
    planned = await operator.apply_schedules(
        options.owner, schedules, revision=revision, dry_run=True
    )
    withheld = planned.removed and not (options.prune or options.dry_run)
    if withheld or options.dry_run:
        _print(options, planned)
    if withheld:
        names = ", ".join(planned.removed)
        note(f"codeq-cluster: {names} would be removed; add --prune to do it")
        return Exit.USAGE
    if not options.dry_run:
        _print(options, await operator.apply_schedules(options.owner, schedules, revision=revision))
    return Exit.OK


def _print(options: argparse.Namespace, applied: Applied) -> None:
    if options.json:
        document(applied, compact=True)
        return
    for word in ("created", "changed", "removed", "unchanged"):
        for schedule_id in getattr(applied, word):
            print(f"{word} {schedule_id}")
    if applied.dry_run:
        note("nothing is changed yet")


def _schedule(options: argparse.Namespace) -> Mapping[str, Any]:
    """Return the schedule.

    Raises:
        UsageRefused: Both a file and flags are given, or one of them cannot be read.
    """
    late = {"policy": options.missed, "windowSeconds": options.missed_window}
    task = {
        "command": options.task_command,
        "payload": (None if options.payload is None else given_json("--payload", options.payload)),
        "priority": options.priority,
    }
    flags = {
        "cron": options.cron,
        "zone": options.zone,
        "every": options.every,
        "offset": options.offset,
        "task": _given(task),
        "overlap": options.overlap,
        "missed": _given(late),
        "jitterSeconds": options.jitter,
        "startAt": options.start_at and options.start_at.isoformat(),
        "endAt": options.end_at and options.end_at.isoformat(),
        "maxRuns": options.max_runs,
        "pauseAfterFailures": options.pause_after_failures,
        "note": options.note,
    }
    given = _given(flags)
    if options.file is not None:
        if given:
            raise UsageRefused("--file stands for the other flags: give either")
        return _read(options.file, _Schedule, "a JSON object")
    if options.task_command is None:
        raise UsageRefused("--command: name what the task of each run is to do, or give --file")
    given["task"].setdefault("payload", {})
    return given


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def _read(file: str, kind: type[T], words: str) -> T:
    """Return a file's JSON, whose values stay unparsed, so that numbers keep every digit."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        return msgspec.json.decode(text, type=kind)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageRefused(f"--file {file}: {error}; must be {words}") from error
