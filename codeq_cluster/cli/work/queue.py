"""Command `queue`: show the sizes of queues, pause and resume them, cancel what waits in them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from codeq_cluster.cli.support.asking import Verbs, add_verb, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, counted_or_done
from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.named import refuse_unknown
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import (
    LIMIT_MAX,
    add_paging,
    check_limit,
    columns,
    document,
    gathered,
    listed,
    note,
    rows_of,
    table,
)
from codeq_cluster.cli.support.rates import add_rate, said_rate
from codeq_cluster.client import Operator, Page, Refused

_COLUMNS = columns(
    "command ready delayed held inProgress dlq oldestReadySeconds paused", command="QUEUE"
)
# The flags of a rule of keys, with its fields and their values, the default first.
_RULE = (
    ("--order", "order", ("priority", "fifo")),
    ("--on-retry", "onRetry", ("hold", "yield")),
    ("--when-dead", "whenDead", ("next", "stop")),
)
_KEYS_SHOWN = 20
_KEYS = columns("key inProgress ready held backingOff stoppedBy limitedUntil heldUntil own")


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(
        commands, "queue", "inspect, pause, resume and purge queues", description=__doc__
    )
    verb = partial(add_verb, verbs, Operator)
    found = verbs.add_parser("ls", aliases=["list"], help="list the queues")
    found.add_argument("-q", "--quiet", action="store_true", help="print only names")
    add_paging(found, default=LIMIT_MAX)
    asks(found, Operator, _list)

    verb("inspect", "show a queue, and what its dead letters died of", _inspect, "queue")

    flow = verbs.add_parser(
        "flow",
        help="show or set how many tasks of a queue or one key may run at once, and how often",
        description="Show or change the rules of a queue and its keys; its topic stays else.",
    )
    flow.add_argument("queue")
    number(flow, "--max", "tasks of the queue in progress at once")
    add_rate(flow, "--queue-rate", "--queue-burst", of="the queue")
    number(flow, "--max-per-key", "tasks of one key in progress at once")
    add_rate(flow)
    for flag, field, words in _RULE:
        flow.add_argument(flag, dest=field, choices=words, help=words[0] + " if never set")
    flow.add_argument(
        "--limit", metavar="NAME", help="the limit that it shares with other queues; off for none"
    )
    flow.add_argument("--off", action="store_true", help="end the rules: nothing holds tasks then")
    asks(flow, Operator, _flow)

    keys = verbs.add_parser(
        "keys",
        help="show the busiest keys of a queue",
        description="Show the keys of a queue, those with the most held tasks first.",
    )
    keys.add_argument("queue")
    number(keys, "--limit", f"keys at most; default: {_KEYS_SHOWN}", default=_KEYS_SHOWN)
    asks(keys, Operator, _keys)

    key = verbs.add_parser(
        "key",
        help="show or set the limits that one key of a queue has of its own",
        description="Show or change what one key has beside the rule of its queue's keys.",
    )
    key.add_argument("queue")
    key.add_argument("key")
    number(key, "--max-running", "tasks of the key in progress at once")
    add_rate(key)
    number(key, "--weight", "turns of the key in a round of all keys; default: 1")
    stops = key.add_mutually_exclusive_group()
    stops.add_argument(
        "--pause",
        dest="paused",
        action="store_true",
        default=None,
        help="let nothing of the key go; leases that run go on",
    )
    stops.add_argument("--resume", dest="paused", action="store_false", help="let the key go on")
    key.add_argument("--off", action="store_true", help="let the key follow its queue's rule again")
    asks(key, Operator, _key)

    pause = verbs.add_parser("pause", help="let nobody claim from a queue; leases that run go on")
    pause.add_argument("queue")
    pause.add_argument(
        "--create", action="store_true", help="also a queue that has no tasks and no topic yet"
    )
    asks(pause, Operator, _pause)

    verb("resume", "let a paused queue be claimed from again", _resume, "queue")

    purge = verbs.add_parser(
        "purge",
        help="cancel the tasks that wait in a queue",
        description="Cancel the ready, delayed and held tasks of a queue. Tasks in progress and "
        "dead letters stay.",
    )
    purge.add_argument("queue")
    add_consent(purge)
    asks(purge, Operator, _purge)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    check_limit(options)
    if options.cursor or options.limit < LIMIT_MAX:
        page = await gathered(options, operator.queue_page)
    else:
        page = Page(await operator.queues(), "")
    rows = [{"paused": False, **row} for row in page.rows]
    listed(options, Page(rows, page.cursor), name="queues", columns=_COLUMNS)


async def _inspect(operator: Operator, options: argparse.Namespace) -> None:
    await refuse_unknown(operator, options.queue)
    queue = await operator.queue(options.queue)
    if options.json:
        causes = await operator.death_causes(options.queue)
        errors = rows_of(causes.get("groups"))
        document({"paused": False, **queue, "deadLetterErrors": errors}, compact=True)
        return
    causes = await operator.death_causes(options.queue, by="kind")
    died = rows_of(causes.get("kinds"))
    table(tuple(_COLUMNS), [[queue.get(field, False) for field in _COLUMNS.values()]])
    if "heldUntil" in queue:
        note(f"a worker holds it: nothing of it is handed out before {queue['heldUntil']}")
    if died:
        print()
        rows = ((row.get("count"), row.get("kind")) for row in died)
        table(("DEAD LETTERS", "KIND OF ERROR"), rows)


async def _flow(operator: Operator, options: argparse.Namespace) -> None:
    said: dict[str, Any] = {
        field: getattr(options, field) for _, field, _ in _RULE if getattr(options, field)
    }
    if options.max_per_key is not None:
        said["maxRunning"] = options.max_per_key
    said |= said_rate(options.rate, options.burst)
    whole = {} if options.max is None else {"maxRunning": options.max}
    whole |= said_rate(options.queue_rate, options.queue_burst, flag="--queue-rate")
    if options.limit is not None:
        whole["limit"] = None if options.limit == "off" else options.limit
    if options.off and (said or whole):
        raise UsageRefused("--off ends the rules: leave out the other flags")
    try:
        topic = await operator.topic(options.queue)
    except Refused as error:
        if error.code != "not-found":
            raise
        topic = {"policy": {}}
    policy = dict(topic["policy"])
    if options.off or said or whole:
        flow = {} if options.off else {**policy.pop("flow", {}), **whole}
        if said:
            flow["perKey"] = {**flow.get("perKey", {}), **said}
        topic = await operator.put_topic(options.queue, {**policy, "flow": flow})
    shown = {
        "flow": topic["policy"].get("flow", {}),
        "settling": topic.get("settling", False),
        "draining": topic.get("draining", []),
    }
    document(shown, compact=options.json)


async def _key(operator: Operator, options: argparse.Namespace) -> None:
    said: dict[str, Any] = {
        "maxRunning": options.max_running,
        "weight": options.weight,
        "paused": options.paused,
    }
    said = {field: value for field, value in said.items() if value is not None}
    said |= said_rate(options.rate, options.burst)
    if options.off and said:
        raise UsageRefused("--off ends the key's own limits: leave out the other flags")
    if options.off:
        await operator.delete_key(options.queue, options.key)
    elif said:
        own = (await operator.key(options.queue, options.key)).get("own", {})
        await operator.put_key(options.queue, options.key, {**own, **said})
    document(await operator.key(options.queue, options.key), compact=options.json)


async def _keys(operator: Operator, options: argparse.Namespace) -> None:
    await refuse_unknown(operator, options.queue)
    found = await operator.keys(options.queue, limit=options.limit)
    if options.json:
        document(found, compact=True)
        return
    rows = rows_of(found.get("keys"))
    shown = [{**row, "own": "yes"} if "own" in row else row for row in rows]
    table(tuple(_KEYS), [[row.get(field, "-") for field in _KEYS.values()] for row in shown])
    if found.get("more"):
        note("the queue has more keys than were looked at; others may be busier")


async def _pause(operator: Operator, options: argparse.Namespace) -> None:
    if not options.create:
        advice = "; add --create to pause it before its first task"
        await refuse_unknown(operator, options.queue, advice=advice)
    _turned(options, dict(await operator.pause(options.queue)), "paused")


async def _resume(operator: Operator, options: argparse.Namespace) -> None:
    await refuse_unknown(operator, options.queue)
    _turned(options, dict(await operator.resume(options.queue)), "resumed")


async def _purge(operator: Operator, options: argparse.Namespace) -> Exit:
    async def act(dry_run: bool) -> Mapping[str, object]:
        answer = await operator.purge(options.queue, dry_run=dry_run)
        if not answer.get("matched"):
            await refuse_unknown(operator, options.queue)
        return answer

    return await counted_or_done(
        options,
        act,
        field="purged",
        done="cancelled",
        counted=lambda count: f"{count} waiting task{'' if count == 1 else 's'} of {options.queue}",
    )


def _turned(options: argparse.Namespace, answer: dict[str, object], word: str) -> None:
    if options.json:
        document(answer, compact=True)
        return
    print(options.queue)
    note(f"{options.queue} is {word}" + ("" if answer.get("changed") else ", as it was before"))
