"""Command `dlq`: list, requeue and delete the dead letters of a queue."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping

from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, withheld
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import add_paging, add_quiet, document, gathered, listed, note
from codeq_cluster.client import Operator, Selection

_COLUMNS = {"ID": "id", "EVENT": "command", "ATTEMPTS": "attempts", "DIED": "updatedAt"} | {
    "ERROR": "error"
}
_Act = Callable[..., Awaitable[Mapping[str, object]]]


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "dlq", "list, requeue and delete dead letters", description=__doc__)
    found = verbs.add_parser("ls", aliases=["list"], help="list dead letters, the newest first")
    found.add_argument("event", help="the queue")
    found.add_argument("--error", default="", help="only those with exactly this error")
    add_paging(found)
    add_quiet(found)
    asks(found, Operator, _list)

    show = verbs.add_parser("show", help="print a dead letter and the result it died with")
    show.add_argument("event", help="the queue")
    show.add_argument("id")
    asks(show, Operator, _show)

    requeue = verbs.add_parser(
        "requeue",
        help="make dead letters ready again",
        description="Make dead letters ready again; their attempts count from zero.",
    )
    _add_selection(requeue)
    asks(requeue, Operator, _requeue)

    delete = verbs.add_parser("delete", help="delete dead letters and their results")
    _add_selection(delete)
    asks(delete, Operator, _delete)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("event", help="the queue")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help="every dead letter of the queue")
    chosen.add_argument("--error", help="those with exactly this error")
    chosen.add_argument(
        "--id", action="append", metavar="ID", help="this one; may be repeated, 1000 times at most"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the newest N of them")
    add_consent(parser)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    page = await gathered(
        options,
        lambda limit, cursor: operator.dead_letters(
            options.event, error=options.error, limit=limit, cursor=cursor
        ),
    )
    listed(options, page, name="tasks", columns=_COLUMNS)


async def _show(operator: Operator, options: argparse.Namespace) -> None:
    document(await operator.dead_letter(options.event, options.id), compact=options.json)


async def _requeue(operator: Operator, options: argparse.Namespace) -> Exit:
    return await _act(options, operator.requeue, "requeued")


async def _delete(operator: Operator, options: argparse.Namespace) -> Exit:
    return await _act(options, operator.delete_dead_letters, "deleted")


async def _act(options: argparse.Namespace, act: _Act, word: str) -> Exit:
    # A script with an empty variable must not act on all dead letters.
    if not options.all and options.id is None and not options.error:
        raise UsageRefused(
            "--error is empty: allowed is the error of some dead letters, or use --all"
        )
    selection = Selection(
        error=options.error or "",
        ids=None if options.id is None else tuple(options.id),
        limit=options.limit,
    )
    doing = options.yes and not options.dry_run
    answer = await act(options.event, selection, dry_run=not doing)
    if options.json:
        document(answer, compact=True)
    else:
        print(answer.get(word) if doing else answer.get("matched"))
    if not doing and (answer.get("matched") or options.dry_run):
        return withheld(options, what=_counted(answer.get("matched"), options), done=word)
    note(f"{_counted(answer.get(word), options)} {word}")
    if answer.get("more"):
        note("there are more: run it again")
    return _missed(options, answer)


def _missed(options: argparse.Namespace, answer: Mapping[str, object]) -> Exit:
    """Print a note if some of the ids are not dead letters."""
    missed = len(set(options.id or ())) - int(str(answer.get("matched", 0)))
    if options.id is None or missed <= 0:
        return Exit.OK
    note(f"codeq-cluster: {missed} of the ids named are no dead letters of {options.event}; see ls")
    return Exit.API


def _counted(count: object, options: argparse.Namespace) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'} of {options.event}"
