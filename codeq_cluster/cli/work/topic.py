"""Command `topic`: the policies that govern queues."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from codeq_cluster.cli.support.asking import Verbs, add_verb, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, consented, withheld
from codeq_cluster.cli.support.flags import add_backoff
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import (
    add_paging,
    add_quiet,
    document,
    gathered,
    listed,
    note,
    show,
)
from codeq_cluster.cli.support.times import add_times
from codeq_cluster.client import Operator

_COLUMNS = {
    "NAME": "name",
    "VERSION": "version",
    "PRIORITIES": "priorityTiers",
    "ATTEMPTS": "maxAttempts",
    "DEAD LETTERS TO": "deadLetterTopicRef",
    "RETENTION (S)": "retentionSeconds",
    "CONSUMERS": "maxConsumers",
    "WEIGHT": "weight",
}


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "topic", "read and set the policies of queues", description=__doc__)
    verb = partial(add_verb, verbs, Operator)
    verb("ls", "list the topics", _list, add_paging, add_quiet)
    verb("get", "print a topic", _get, "name", add_times)

    put = verbs.add_parser(
        "put",
        help="create a topic or replace its policy",
        description="Create a topic or replace its policy. Fields without a flag get the broker's "
        "defaults, even if they were set before.",
    )
    put.add_argument("name", help="the command it governs")
    put.add_argument("--policy", metavar="FILE", help="JSON file, or - for stdin, for the flags")
    put.add_argument(
        "--priorities", metavar="N,N", help="priorities that new tasks may have, 0 to 10"
    )
    put.add_argument("--max-attempts", type=int, help="1 to 100")
    put.add_argument(
        "--dead-letters-to", metavar="NAME", help="the queue that keeps its dead letters"
    )
    put.add_argument("--retention-seconds", type=int, help="from a task's end to its deletion")
    put.add_argument(
        "--max-consumers", type=int, help="tasks in progress at once; 0 for any number"
    )
    put.add_argument("--weight", type=int, help="its share when several queues are claimed from")
    put.add_argument(
        "--timeout-seconds",
        type=int,
        help="how long a worker may take for one attempt: default and upper bound of a task's own",
    )
    add_backoff(put, otherwise="the broker's")
    add_times(put)
    asks(put, Operator, _put)

    verb("delete", "delete a topic; no task is deleted", _delete, "name", add_consent)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    listed(options, await gathered(options, operator.topics), name="topics", columns=_COLUMNS)


async def _get(operator: Operator, options: argparse.Namespace) -> None:
    show(options, await operator.topic(options.name))


async def _put(operator: Operator, options: argparse.Namespace) -> None:
    show(options, await operator.put_topic(options.name, _policy(options)))


async def _delete(operator: Operator, options: argparse.Namespace) -> Exit:
    topic = await operator.topic(options.name)
    queue = await operator.queue(options.name)
    waiting = sum(
        int(str(queue.get(name, 0))) for name in ("ready", "delayed", "held", "inProgress")
    )
    doing = consented(options)
    if doing:
        await operator.delete_topic(options.name)
    if options.json:
        document({"name": topic.get("name"), "tasks": waiting, "deleted": doing}, compact=True)
    elif doing:
        print(topic.get("name"))
    unfinished = f"{waiting} unfinished task{'' if waiting == 1 else 's'}"
    what = f"topic {options.name} ({unfinished} in its queue)"
    if not doing:
        return withheld(options, what=what, done="deleted")
    note(f"{what} deleted")
    return Exit.OK


def _policy(options: argparse.Namespace) -> dict[str, object]:
    """Return the policy.

    Raises:
        Usage: Both a file and flags are given, or one of them cannot be read.
    """
    flags: dict[str, object] = {
        "priorityTiers": _priorities(options.priorities),
        "maxAttempts": options.max_attempts,
        "deadLetterTopicRef": options.dead_letters_to,
        "retentionSeconds": options.retention_seconds,
        "maxConsumers": options.max_consumers,
        "weight": options.weight,
        "timeoutSeconds": options.timeout_seconds,
        "backoffPolicy": options.backoff,
        "backoffBaseSeconds": options.backoff_base,
        "backoffMaxSeconds": options.backoff_max,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    if options.policy is None:
        return given
    if given:
        raise UsageRefused("--policy stands for the other flags: give either")
    try:
        text = sys.stdin.read() if options.policy == "-" else Path(options.policy).read_text()
        policy = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageRefused(f"--policy {options.policy}: {error}; must be a JSON object") from error
    if not isinstance(policy, dict):
        raise UsageRefused(f"--policy {options.policy}: must be a JSON object")
    return policy


def _priorities(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(each) for each in text.split(",")]
    except ValueError as error:
        raise UsageRefused(f"--priorities {text}: must be numbers, as 0,5,9") from error
