"""Command `dlq`: list, requeue and delete dead letters."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from codeq_cluster.cli.support.asking import Verbs, add_verb, asks, verbs_of
from codeq_cluster.cli.support.consent import add_chosen, counted_or_done
from codeq_cluster.cli.support.flags import raw_json
from codeq_cluster.cli.support.named import refuse_unknown, whole_id
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import (
    add_listing,
    columns,
    document,
    gathered,
    listed,
    note,
    rows_of,
    table,
)
from codeq_cluster.cli.support.times import add_times, dated, times_of
from codeq_cluster.client import Operator, Page, Selection

_COLUMNS = columns("id command attempts updatedAt error", command="QUEUE", updatedAt="DIED")
_Act = Callable[..., Awaitable[Mapping[str, object]]]


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "dlq", "list, requeue and delete dead letters", description=__doc__)
    verb = partial(add_verb, verbs, Operator)
    found = verbs.add_parser(
        "ls",
        aliases=["list"],
        help="list dead letters, the newest first, or the kinds of their errors",
        description="List the dead letters of a queue, the newest first; without a queue those of "
        "all queues, sorted by queue.",
    )
    found.add_argument("queue", nargs="?", default="", help="default: every queue")
    _add_causes(found)
    found.add_argument(
        "--group", action="store_true", help="print the kinds of errors with counts instead"
    )
    add_listing(found)
    asks(found, Operator, _list)

    verb("show", "print a dead letter and the result it died with", _show, "queue", "id", add_times)

    requeue = verbs.add_parser(
        "requeue",
        help="make dead letters ready again, with other payloads if need be",
        description="Make dead letters ready again; their attempts count from zero.",
    )
    _add_selection(requeue)
    change = requeue.add_mutually_exclusive_group()
    change.add_argument(
        "--patch",
        type=_json_object,
        metavar="JSON",
        help="a JSON object, merged into each payload first (RFC 7396)",
    )
    change.add_argument(
        "--payload",
        type=_json,
        metavar="JSON",
        help="replaces the payload of the only dead letter that --id names",
    )
    asks(requeue, Operator, _requeue)

    verb("delete", "delete dead letters and their results", _delete, _add_selection)


def _add_causes(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--error", help="those with exactly this error")
    parser.add_argument(
        "--kind", help="those whose error differs from this only in numbers and ids"
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue")
    _add_causes(add_chosen(parser, every="every dead letter of the queue"))
    parser.add_argument("--limit", type=int, metavar="N", help="the newest N of them")


def _json_object(text: str) -> Mapping[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from error


def _json(text: str) -> msgspec.Raw:
    try:
        return raw_json(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be JSON: {error}") from error


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    error, kind = options.error or "", options.kind or ""
    if options.group:
        await _group(operator, options, error)
        return

    async def read(limit: int, cursor: str) -> Page:
        if not options.queue:
            return await operator.tasks(
                status="DEAD", error=error, kind=kind, limit=limit, cursor=cursor
            )
        return await operator.dead_letters(
            options.queue, error=error, kind=kind, limit=limit, cursor=cursor
        )

    page = await gathered(options, read)
    if options.queue and not page.rows:
        await refuse_unknown(operator, options.queue)
    listed(options, page, name="tasks", columns=_COLUMNS, none="no dead letters")


async def _group(operator: Operator, options: argparse.Namespace, error: str) -> None:
    queues = [options.queue] if options.queue else await _queues_with_dead_letters(operator)
    found = {name: await operator.death_causes(name, error=error, by="kind") for name in queues}
    if options.queue and not found[options.queue].get("matched"):
        await refuse_unknown(operator, options.queue)
    if options.json:
        document(found[options.queue] if options.queue else {"queues": found}, compact=True)
        return
    table(
        ("QUEUE", "DEAD LETTERS", "OLDEST", "NEWEST", "KIND OF ERROR"),
        (
            [name, *(row.get(field) for field in ("count", "oldestAt", "newestAt", "kind"))]
            for name, causes in found.items()
            for row in map(dated, rows_of(causes.get("kinds")))
        ),
        times=times_of(options),
    )
    for name, causes in found.items():
        if causes.get("more"):
            note(f"only the newest dead letters of {name} were counted; there are more")


async def _queues_with_dead_letters(operator: Operator) -> list[str]:
    return [str(row["command"]) for row in await operator.queues() if row.get("dlq")]


async def _show(operator: Operator, options: argparse.Namespace) -> None:
    found = await operator.dead_letter(options.queue, await whole_id(operator, options.id))
    shown = found if options.json else {name: dated(part) for name, part in found.items()}
    document(shown, compact=options.json, times=times_of(options))


async def _requeue(operator: Operator, options: argparse.Namespace) -> Exit:
    if options.payload is not None and len(options.id or ()) != 1:
        raise UsageRefused("--payload is for a single dead letter: name it with --id")
    act = partial(operator.requeue, patch=options.patch, payload=options.payload)
    return await _act(operator, options, act, "requeued")


async def _delete(operator: Operator, options: argparse.Namespace) -> Exit:
    return await _act(operator, options, operator.delete_dead_letters, "deleted")


async def _act(operator: Operator, options: argparse.Namespace, act: _Act, word: str) -> Exit:
    # A script with an empty variable must not act on all dead letters.
    if not options.all and options.id is None and not options.error and not options.kind:
        raise UsageRefused("--error or --kind is empty: name an error, or use --all")
    ids = None if options.id is None else [await whole_id(operator, each) for each in options.id]
    selection = Selection(
        error=options.error or "",
        kind=options.kind or "",
        ids=None if ids is None else tuple(ids),
        limit=options.limit,
    )

    async def counted(dry_run: bool) -> Mapping[str, object]:
        answer = await act(options.queue, selection, dry_run=dry_run)
        if not answer.get("matched"):
            await refuse_unknown(operator, options.queue)
        if not options.json:
            _preview(answer)
        return answer

    return await counted_or_done(
        options,
        counted,
        field=word,
        done=word,
        counted=lambda count: f"{count} dead letter{'' if count == 1 else 's'} of {options.queue}",
        strange=f"no dead letters of {options.queue}; see ls",
    )


def _preview(answer: Mapping[str, object]) -> None:
    """Print what becomes of the newest payload, and how many payloads a patch does not fit."""
    if answer.get("leftAlone"):
        note(f"{answer['leftAlone']} left alone: the patch does not fit their payloads")
    if "before" in answer:
        after = answer.get("after")
        note(f"the newest payload, before: {answer['before']}")
        note(f"the newest payload, after:  {after or 'as before, the patch does not fit it'}")
