"""Command `bulk`: one action on all tasks of a selection, by a job that goes on by itself."""

from __future__ import annotations

import argparse
from functools import partial

from msgspec import to_builtins

from codeq_cluster.cli.support.asking import Verbs, add_verb, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, consented, withheld
from codeq_cluster.cli.support.flags import add_created, add_tags, add_untagged, number
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import add_quiet, columns, document, listed, note, show, told
from codeq_cluster.cli.support.times import add_times
from codeq_cluster.client import BulkAction, BulkRecord, Operator, Page, TaskSelection

_COLUMNS = columns("id status action selected changed looked createdAt endedAt")
_STATUSES = ("PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "DEAD")
_ACTIONS = {
    "cancel": ("cancel", "end tasks that have not ended"),
    "requeue": ("requeue", "make dead letters ready again"),
    "delete": ("delete", "delete ended tasks"),
    "priority": ("priority", "give waiting tasks another priority"),
    "run-now": ("runNow", "make delayed tasks ready"),
    "tag": ("tag", "set and remove tags"),
}


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(
        commands, "bulk", "one action on all tasks of a selection", description=__doc__
    )
    for name, (action, words) in _ACTIONS.items():
        begin = verbs.add_parser(name, help=f"begin a job: {words}", description=f"{words}.")
        _add_selection(begin)
        if name == "cancel":
            begin.add_argument("--reason", metavar="TEXT", help="for people")
        if name == "priority":
            number(begin, "--to", "the new priority, 0 to 9", required=True, dest="priority")
        if name == "tag":
            add_tags(begin, "each has this tag afterwards", flag="--set", dest="set")
            add_untagged(begin, of="each")
        begin.set_defaults(action=action)
        asks(begin, Operator, _start)

    verb = partial(add_verb, verbs, Operator)
    verb("ls", "list the jobs, the newest first", _list, add_quiet, add_times)
    verb("show", "print how far a job has come", _show, "id", add_times)
    verb("stop", "stop a job; what it has done stays", _stop, "id")


def _add_selection(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--name", metavar="ID", help="the job's name; default: a new one")
    verb.add_argument("--queue", default="", metavar="NAME", help="only this queue's")
    verb.add_argument("--status", default="", choices=_STATUSES, help="only these")
    verb.add_argument("--schedule", default="", metavar="ID", help="only those it made")
    verb.add_argument("--group", default="", metavar="ID", help="only its members")
    add_tags(verb, "only those with this tag")
    add_created(verb)
    add_consent(verb)


async def _start(operator: Operator, options: argparse.Namespace) -> Exit:
    select = TaskSelection(
        tags=dict(options.tags),
        command=options.queue,
        status=options.status,
        schedule=options.schedule,
        group=options.group,
        created_after=options.created_after,
        created_before=options.created_before,
    )
    action = BulkAction(
        action=options.action,
        reason=getattr(options, "reason", None),
        priority=getattr(options, "priority", None),
        set=dict(options.set) if hasattr(options, "set") else None,
        remove=getattr(options, "remove", None),
    )
    if consented(options):
        _say(options, await operator.start_bulk(select, action, job_id=options.name))
        return Exit.OK
    counts = await operator.count_bulk(select, action)
    if options.json:
        document(counts, compact=True)
    else:
        print(counts.changes)
        for status, count in sorted(counts.by_status.items()):
            note(f"{count} of {counts.selected} selected tasks are {status}")
    if counts.more:
        note("there are more: only the first rows were read")
    what = f"{counts.changes} {'task' if counts.changes == 1 else 'tasks'}"
    return withheld(options, what=what, done="changed")


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    rows = [to_builtins(job) for job in await operator.bulk_jobs()]
    listed(options, Page(rows, ""), name="jobs", columns=_COLUMNS)


async def _show(operator: Operator, options: argparse.Namespace) -> None:
    show(options, await operator.bulk_job(options.id))


async def _stop(operator: Operator, options: argparse.Namespace) -> None:
    _say(options, await operator.stop_bulk(options.id))


def _say(options: argparse.Namespace, job: BulkRecord) -> None:
    told(options, job, f"{job.id} {job.status}")
