"""Command `schedule`: when the broker creates tasks by itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from codeq_cluster.cli.support.asking import Verbs, add_verb, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, consented, counted_or_done, withheld
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import (
    add_listing,
    columns,
    document,
    gathered,
    listed,
    note,
    show,
    table,
    told,
)
from codeq_cluster.cli.support.times import add_times, dated, given_instant, times_of
from codeq_cluster.cli.work import schedule_put
from codeq_cluster.client import Operator, Page

_COLUMNS = columns(
    "id state fires command nextAt lastAt lastStatus running missed skipped owner",
    lastStatus="LAST WAS",
)


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(
        commands, "schedule", "when tasks are created by themselves", description=__doc__
    )
    verb = partial(add_verb, verbs, Operator)
    found = verbs.add_parser("ls", aliases=["list"], help="list the schedules")
    found.add_argument("--owner", default="", metavar="NAME", help="only those of this set")
    add_listing(found)
    asks(found, Operator, _list)

    verb("get", "print a schedule with its next instants and its last runs", _get, "id", add_times)

    schedule_put.add(verbs)

    preview = verbs.add_parser(
        "preview",
        help="print the next instants of a schedule, which need not exist",
        description="Print the next instants of a schedule, which need not exist. When clocks "
        "change, a fixed time runs once a day, as with the cron of Vixie and Debian.",
    )
    preview.add_argument("cron", nargs="?", metavar="CRON", help=schedule_put.CRON_HELP)
    schedule_put.add_zone(preview, instead_of="CRON")
    preview.add_argument(
        "--from",
        dest="after",
        type=given_instant,
        metavar="TIME",
        help="only instants after this one, RFC 3339; default: now",
    )
    preview.add_argument("--count", type=int, metavar="N", help="1 to 100; default: 10")
    add_times(preview)
    asks(preview, Operator, _preview)

    verb("pause", "let a schedule fire no more; its runs go on", _pause, "id")

    resume = verbs.add_parser("resume", help="let a paused schedule fire again")
    resume.add_argument("id")
    resume.add_argument(
        "--catch-up",
        action="store_true",
        help="the instants of the pause count as late ones; default: as none",
    )
    asks(resume, Operator, _resume)

    trigger = verbs.add_parser(
        "trigger", help="make a run now, whatever the calendar says, and print its task's id"
    )
    trigger.add_argument("id")
    schedule_put.add_overlap(trigger, otherwise="the schedule's own")
    trigger.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="a repeated request with the same key makes no second run; default: a new one",
    )
    asks(trigger, Operator, _trigger)

    backfill = verbs.add_parser(
        "backfill",
        help="let past instants fire, one after the other",
        description="Let past instants fire, one after the other. An instant whose task is still "
        "kept does not fire again, unless it is forced.",
    )
    # Not `id`: those of `counted_or_done` are of what is counted.
    backfill.add_argument("schedule", metavar="id")
    for flag, dest, words in (
        ("--from", "first", "the first instant, RFC 3339"),
        ("--to", "last", "the last instant, not after now"),
    ):
        backfill.add_argument(
            flag, dest=dest, type=given_instant, required=True, metavar="TIME", help=words
        )
    schedule_put.add_overlap(backfill, otherwise="queue")
    backfill.add_argument(
        "--force", action="store_true", help="fire instants again whose task is still kept"
    )
    add_consent(backfill)
    asks(backfill, Operator, _backfill)

    remove = verbs.add_parser("rm", aliases=["delete"], help="delete a schedule; its runs go on")
    remove.add_argument("id")
    add_consent(remove, otherwise="print its name")
    asks(remove, Operator, _remove)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    page = await gathered(options, partial(operator.schedules, owner=options.owner))
    shown = page if options.json else Page(list(map(_row, page.rows)), page.cursor)
    listed(options, shown, name="schedules", columns=_COLUMNS)


def _row(schedule: Mapping[str, Any]) -> dict[str, Any]:
    coming, last = schedule["next"], schedule["lastRuns"]
    zone = schedule.get("zone", "UTC")
    every = f"every {schedule.get('every')}"
    if "offset" in schedule:
        every += f", {schedule['offset']} later"
    return {
        **schedule,
        "fires": f"{schedule['cron']} {zone}" if "cron" in schedule else every,
        "command": schedule["task"]["command"],
        "nextAt": coming[0]["at"] if coming and schedule["state"] == "active" else None,
        "lastAt": last[0]["at"] if last else None,
        "lastStatus": last[0]["status"] if last else None,
        "missed": schedule["missed"]["count"],
    }


async def _get(operator: Operator, options: argparse.Namespace) -> None:
    show(options, await operator.schedule(options.id))


async def _preview(operator: Operator, options: argparse.Namespace) -> None:
    said = {name: getattr(options, name) for name in ("cron", "zone", "every", "offset")}
    schedule = {name: text for name, text in said.items() if text is not None}
    found = await operator.preview_schedule(schedule, after=options.after, count=options.count)
    if options.json:
        document(found, compact=True)
        return
    rows = [(each["at"], _local(each)) for each in map(dated, found["instants"])]
    table(("AT", f"IN {options.zone or 'UTC'}"), rows, times=times_of(options))
    note(f"rules of time zones: {found['zoneRules']}")


async def _pause(operator: Operator, options: argparse.Namespace) -> None:
    found = await operator.pause_schedule(options.id)
    told(options, found, f"{found.id} {found.state}")


async def _resume(operator: Operator, options: argparse.Namespace) -> None:
    found = await operator.resume_schedule(options.id, catch_up=options.catch_up)
    told(options, found, f"{found.id} {found.state}")


async def _trigger(operator: Operator, options: argparse.Namespace) -> Exit:
    made = await operator.trigger_schedule(
        options.id, overlap=options.overlap, idempotency_key=options.idempotency_key
    )
    if options.json:
        document(made, compact=True)
    elif made.task_id:
        print(made.task_id)
    if made.outcome == "skipped":
        note("codeq-cluster: another run has not ended; see --overlap")
        return Exit.API
    if made.outcome == "queued":
        note("it waits for the runs that have not ended")
    return Exit.OK


async def _backfill(operator: Operator, options: argparse.Namespace) -> Exit:
    async def act(dry_run: bool) -> Mapping[str, object]:
        found = await operator.backfill_schedule(
            options.schedule,
            first=options.first,
            last=options.last,
            overlap=options.overlap,
            force=options.force,
            dry_run=dry_run,
        )
        return {"count": found.count, "instants": found.instants, "dryRun": found.dry_run}

    return await counted_or_done(options, act, field="count", done="fired", counted=_instants)


async def _remove(operator: Operator, options: argparse.Namespace) -> Exit:
    found = await operator.schedule(options.id)
    doing = consented(options)
    if doing:
        await operator.delete_schedule(options.id)
    if options.json:
        document({"id": found.id, "running": found.running, "deleted": doing}, compact=True)
    elif doing:
        print(found.id)
    what = f"schedule {found.id} ({found.task.command}, {found.running} running)"
    if not doing:
        return withheld(options, what=what, done="deleted")
    note(f"{what} deleted")
    return Exit.OK


def _instants(count: object) -> str:
    return f"{count} instant{'' if count == 1 else 's'}"


def _local(instant: Mapping[str, Any]) -> str:
    again = ", the second time" if instant["fold"] else ""
    return f"{instant['local'].replace('T', ' ')}{again}"
