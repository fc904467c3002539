"""Command `verify`: work on a cluster in every way that workers have, and judge what it answered.

It creates tasks in a queue of its own, or in an empty one that is named, and repeats some creates.
It completes, fails, nacks, abandons, keeps or loses each task that it claims, and reads all of them
at the end. Kill nodes meanwhile: the promises hold. It ends with 1 if one is broken or unknown.
"""

from __future__ import annotations

import argparse
import logging
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TypeVar

from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import document, note
from codeq_cluster.cli.support.progress import bar
from codeq_cluster.cli.support.target import Caller, ca_of, token_for, token_of, urls_of
from codeq_cluster.cli.support.watching import asked_to_end
from codeq_cluster.cli.work.load_flags import Number, add_load_flags, check_empty, check_numbers
from codeq_cluster.cli.work.verify_checks import judge
from codeq_cluster.cli.work.verify_load import DRAIN_S_MIN, Tried, Verification, VerifyLoad
from codeq_cluster.client import Client, Leases

C = TypeVar("C", Client, Leases)

_NUMBERS = {
    "tasks": Number("create at most so many", 1, 100_000, 500),
    "seconds": Number("create for at most so long", 1, 3600, 60),
    "in_flight": Number("creates under way at once, and as many workers", 1, 256, 32),
    "drain_seconds": Number(
        "wait at most so long until all have ended",
        DRAIN_S_MIN,
        3600,
        2 * DRAIN_S_MIN,
    ),
}
_DEADLINE_S = 20.0  # Of one request, over the death of a leader.


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "verify", help="judge whether a cluster keeps its promises", description=__doc__
    )
    add_load_flags(parser, _NUMBERS)
    asks(parser, Client, _verify, deadline_s=_DEADLINE_S, discover=True)


async def _verify(client: Client, options: argparse.Namespace) -> Exit:
    check_numbers(options, _NUMBERS)
    load = VerifyLoad(
        queue=options.queue or f"codeq-verify-{secrets.token_hex(4)}",
        tasks=options.tasks,
        seconds=options.seconds,
        drain_s=options.drain_seconds,
        in_flight=options.in_flight,
    )
    worker = options.worker_token or options.token or token_for(options, Caller.WORKER)
    async with AsyncExitStack() as opened:
        opened.enter_context(_counted_alone())
        await client.raft_status()  # Fails early for a wrong URL or token.
        clients = [
            await opened.enter_async_context(each)
            for each in _each(Client, token_of(options), options)
        ]
        workers = [
            await opened.enter_async_context(each) for each in _each(Leases, worker, options)
        ]
        if options.queue:
            await check_empty(load.queue, workers[0], options)
        with bar("verifying", load.tasks, what="tasks") as shown:

            def on_progress(tried: Tried) -> None:
                shown.stands_at(len(tried.stories), f"{tried.counts['complete']:,} completed")

            async with asked_to_end(keys=False) as asked:
                tried = await Verification(clients, workers, load, on_progress=on_progress).run()
    if asked.exit is not None:
        note(f"interrupted: the tasks in queue {load.queue} are cancelled")
        return asked.exit
    return _show(load, tried, options)


@contextmanager
def _counted_alone() -> Iterator[None]:
    """Count requests that nobody answers, instead of telling them one by one."""
    log = logging.getLogger("codeq_cluster.client")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _each(connection: type[C], token: str, options: argparse.Namespace) -> Iterator[C]:
    """Yield a connection for each node: it asks the others when that one is gone."""
    for first in urls_of(options):
        nodes = [first, *urls_of(options)]
        yield connection(nodes, token=token, deadline_s=_DEADLINE_S, ca_file=ca_of(options))


def _show(load: VerifyLoad, tried: Tried, options: argparse.Namespace) -> Exit:
    checks = judge(tried.stories)
    holds = all(each.holds for each in checks)
    if options.json:
        shown = {
            "queue": load.queue,
            "holds": holds,
            "tasks": len(tried.stories),
            "tried": dict(tried.counts),
            "unanswered": tried.unanswered,
            "left": tried.left,
            "checks": [each.document() for each in checks],
        }
        document(shown, compact=True)
        return Exit.OK if holds else Exit.ERROR
    counts = ", ".join(f"{n:,} {what}" for what, n in tried.counts.most_common())
    print(f"tried on {len(tried.stories):,} tasks of {load.queue}: {counts}", *checks, sep="\n")
    if tried.left:
        note(f"{tried.left} tasks did not end in time, and are cancelled: try --drain-seconds")
    if tried.unanswered:
        note(f"{tried.unanswered} requests were not answered; nothing is held against them")
    if not holds and not any(each.broken for each in checks):
        note("what is unknown was not seen: see that the cluster answers, and try more --tasks")
    return Exit.OK if holds else Exit.ERROR
