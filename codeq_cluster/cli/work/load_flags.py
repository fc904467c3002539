"""Load flags: what commands that put load on a cluster share: bounded numbers, a queue, a token."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from codeq_cluster.cli.support.outcome import UsageRefused
from codeq_cluster.cli.support.target import Caller, ca_of, token_for, urls_of
from codeq_cluster.client import Leases, Operator, Refused
from codeq_cluster.errors import CodeqError

_ALONE = "name an empty queue that nobody else works on"
_LOOK_LEASE_S = 1
_DEPTHS = ("ready", "delayed", "held", "inProgress")


@dataclass(frozen=True, slots=True)
class Number:
    """A flag that takes a whole number.

    Attributes:
        words: What it says.
    """

    words: str
    least: int
    most: int
    default: int


def add_load_flags(parser: argparse.ArgumentParser, numbers: Mapping[str, Number]) -> None:
    """Add a flag for each number, by the name of its option, and those of queue and token."""
    for name, number in numbers.items():
        parser.add_argument(
            _flag(name),
            type=int,
            default=number.default,
            metavar="N",
            help=f"{number.words}, {number.least} to {number.most}; default: {number.default}",
        )
    parser.add_argument(
        "--queue",
        "--event",
        metavar="NAME",
        help="an empty queue that nobody else works on; default: a new one",
    )
    parser.add_argument(
        "--worker-token",
        metavar="TOKEN",
        help="token that claims; default: --token, else as for worker",
    )


def check_numbers(options: argparse.Namespace, numbers: Mapping[str, Number]) -> None:
    """Refuse a number that is out of its bounds.

    Raises:
        UsageRefused: It names the flag and its bounds.
    """
    for name, number in numbers.items():
        value = getattr(options, name)
        if not number.least <= value <= number.most:
            raise UsageRefused(f"{_flag(name)} {value}: must be {number.least} to {number.most}")


async def check_empty(queue: str, leases: Leases, options: argparse.Namespace) -> None:
    """See that a named queue has no tasks: those of others must not be worked on.

    An admin's token sees it without a touch. Any other has one task claimed for a second, so that
    one task loses an attempt, and not one for each worker.

    Raises:
        CodeqError: There are tasks in it, or a request is refused.
    """
    token = options.token or token_for(options, Caller.ADMIN)
    try:
        async with Operator(urls_of(options), token=token, ca_file=ca_of(options)) as operator:
            depths = await operator.queue(queue)
    except Refused as error:
        if error.status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise
    else:
        tasks = sum(depths.get(each, 0) for each in _DEPTHS)
        if tasks:
            raise CodeqError(f"queue {queue} has {tasks} tasks, which are not touched; {_ALONE}")
    for task in await leases.claim([queue], lease_s=_LOOK_LEASE_S):
        raise tasks_of_others(queue, task.id)


def tasks_of_others(queue: str, task_id: str) -> CodeqError:
    """Return the error that ends a load because it was handed a task of somebody else."""
    return CodeqError(
        f"queue {queue} has tasks of others ({task_id}); those that came here go back, but have "
        f"lost an attempt, and are dead letters if it was their last; {_ALONE}"
    )


def workers_of_others(queue: str, worker: str, tasks: int) -> CodeqError:
    """Return the error that ends a load of which somebody else's worker has got tasks."""
    return CodeqError(
        f"queue {queue} has workers of others ({worker}), which got {tasks} of the tasks made "
        f"here; {_ALONE}"
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
