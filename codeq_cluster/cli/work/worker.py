"""Command `worker`: claim tasks and run a program for each.

The program gets the payload as JSON on standard input, and variables such as CODEQ_TASK_ID,
CODEQ_TASK_COMMAND and CODEQ_TASK_ATTEMPT. Exit 0: the task is completed with the program's standard
output. Exit 100: it has failed for good. Any other end: it is retried. While the program runs, its
lease is extended. SIGTERM or Ctrl-C: nothing more is claimed and running programs may finish; a
second one stops them and returns their tasks.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal

from codeq_cluster.cli.support.asking import Verbs, verbs_of
from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import note
from codeq_cluster.cli.support.target import (
    Caller,
    add_target,
    ca_of,
    say_default,
    token_of,
    urls_of,
)
from codeq_cluster.cli.work.program import Program, executable
from codeq_cluster.client import Ended, Worker
from codeq_cluster.client.worker import EVERY_COMMAND, TIMEOUT_S_MAX
from codeq_cluster.settings import environment

_CONCURRENCY_MAX = 256  # Concurrent processes; beyond that, start another worker.
_LEASE_SECONDS = (3, 12 * 3600)
_WAIT_SECONDS_MAX = 30


def add(commands: Verbs) -> None:
    """Add the command and its verb."""
    verbs = verbs_of(commands, "worker", "run a worker", description=__doc__)
    start = verbs.add_parser("start", help="claim tasks for a program", description=__doc__)
    start.add_argument(
        "--commands",
        "--events",
        required=True,
        action="append",
        metavar="NAME,NAME",
        help="commands to claim; may be repeated; * for all the token allows",
    )
    start.add_argument(
        "--handler", required=True, metavar="PATH", help="program, run once per task"
    )
    number(start, "--concurrency", "programs at once; default: 1", default=1)
    start.add_argument("--once", action="store_true", help="wait for one task, handle it, and end")
    number(
        start,
        "--lease-seconds",
        "a task goes to another worker after so long without a heartbeat; default: 60",
        default=60,
    )
    number(start, "--wait-seconds", "the wait of one claim, 0 to 30", default=20)
    number(
        start,
        "--drain-seconds",
        "programs may go on for so long after a stop; default: 30",
        kind=float,
        default=30.0,
    )
    start.add_argument(
        "--name",
        default="",
        help="stands before the host and process by which people tell workers apart",
    )
    number(
        start,
        "--timeout-seconds",
        "end a program after so long and return its task; default: 43200, 12 hours",
        default=_LEASE_SECONDS[1],
    )
    number(
        start,
        "--give-up-seconds",
        "end after so long without an answer from any node; default: 300",
        kind=float,
        default=300.0,
    )
    number(
        start,
        "--health-port",
        "serve /healthz on this port, which fails while claims are unanswered; default: none",
    )
    start.add_argument(
        "--health-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="its address; 0.0.0.0 in a container; default: 127.0.0.1",
    )
    add_target(start, Caller.WORKER)
    start.add_argument("--json", action="store_true", help="print a JSON line for each task")
    start.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> Exit:
    commands = _commands(options)
    _check(options)
    path = executable(options.handler)
    handler = Program(path, environment=environment())
    _set_up_notes()
    say_default(options)
    worker = Worker(
        urls_of(options),
        token=token_of(options),
        name=options.name,
        concurrency=options.concurrency,
        lease_s=options.lease_seconds,
        wait_s=options.wait_seconds,
        grace_s=options.drain_seconds,
        timeout=options.timeout_seconds,
        give_up_s=options.give_up_seconds,
        ca_file=ca_of(options),
        health_port=options.health_port,
        health_host=options.health_host,
        ended=_show_json if options.json else _show,
    )
    worker.task(*commands)(handler)
    working_on = "all commands" if EVERY_COMMAND in commands else ", ".join(commands)
    note(f"working on {working_on} with {path}; Ctrl-C ends it")
    # Closing the terminal stops it like Ctrl-C.
    worker.run(
        tasks_max=1 if options.once else None,
        signals=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    )
    return Exit.OK


def _commands(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the commands named; a blank name must not stand for all of them."""
    names = [name.strip() for each in options.commands for name in str(each).split(",")]
    if not all(names):
        raise UsageRefused("--commands: a name is empty; name commands, or * for all")
    return (EVERY_COMMAND,) if EVERY_COMMAND in names else tuple(dict.fromkeys(names))


def _check(options: argparse.Namespace) -> None:
    for flag, value, least, most in (
        ("--concurrency", options.concurrency, 1, _CONCURRENCY_MAX),
        ("--lease-seconds", options.lease_seconds, *_LEASE_SECONDS),
        ("--wait-seconds", options.wait_seconds, 0, _WAIT_SECONDS_MAX),
        ("--drain-seconds", options.drain_seconds, 0, _LEASE_SECONDS[1]),
        ("--timeout-seconds", options.timeout_seconds, 1, TIMEOUT_S_MAX),
        ("--give-up-seconds", options.give_up_seconds, 0, 7 * 86400),
        ("--health-port", options.health_port or 0, 0, 65_535),
    ):
        if not least <= value <= most:
            raise UsageRefused(f"{flag} {value}: must be {least} to {most}")


def _show(ended: Ended) -> None:
    print(ended, flush=True)


def _show_json(ended: Ended) -> None:
    line = {
        "id": ended.task.id,
        "command": ended.task.command,
        "attempt": ended.task.attempts,
        "worker": ended.task.worker_name,
        "ending": ended.ending.value,
        "seconds": round(ended.seconds, 3),
    }
    if ended.note:
        line["note"] = ended.note
    print(json.dumps(line, ensure_ascii=False), flush=True)


def _set_up_notes() -> None:
    """Print the client's log records as notes: retried requests, and a stop."""
    log = logging.getLogger("codeq_cluster.client")
    log.handlers = [logging.StreamHandler()]
    log.propagate = False
    log.getChild("delivery").disabled = True  # The command prints each delivery in its own way.
