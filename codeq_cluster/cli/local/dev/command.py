"""Command `dev`: a cluster on this machine, for development, in the foreground until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

import uvloop

from codeq_cluster.backup.catalogue import chosen
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.cli.local.dev.banner import banner
from codeq_cluster.cli.local.dev.directory import empty, locked, prepare, publish, retract
from codeq_cluster.cli.local.dev.plan import (
    ARTIFACTS,
    BACKUPS,
    CLUSTER_ID,
    Extras,
    PlannedNode,
    plan,
    port_base_of,
    require_free,
)
from codeq_cluster.cli.local.dev.readiness import all_ready
from codeq_cluster.cli.local.dev.supervisor import Supervisor
from codeq_cluster.cli.local.serve import until_signal
from codeq_cluster.cli.support.dev_cluster import DIRECTORY, TOKEN
from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.place import add_place, place_of
from codeq_cluster.cli.support.progress import bar
from codeq_cluster.config import load
from codeq_cluster.core.bounds import TENANT
from codeq_cluster.core.sharding import SHARDS_MAX
from codeq_cluster.settings import environment

_NODES = 3
_NODES_MAX = 9
DEMO_NODES_MIN = 3  # A majority has to be left.
DEMO_SECONDS = 60


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("dev", help="run a local cluster", description=__doc__)
    parser.add_argument(
        "--nodes",
        type=int,
        choices=range(1, _NODES_MAX + 1),
        metavar="N",
        help="processes; default: 3, or 1 with --virtual-time; 1 runs inside this process",
    )
    parser.add_argument(
        "--shards",
        type=int,
        choices=range(1, SHARDS_MAX + 1),
        metavar="N",
        help="Raft groups, 4 by default; fixed when the data is created",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=DIRECTORY,
        metavar="DIR",
        help=f"data directory; default: {DIRECTORY}",
    )
    number(
        parser,
        "--port-base",
        "HTTP port of the first node; without it CODEQ_PORT_BASE, or 8080",
        metavar="PORT",
    )
    parser.add_argument("--restart", action="store_true", help="restart nodes that die")
    parser.add_argument("--fresh", action="store_true", help="delete the data first")
    parser.add_argument(
        "--tenant",
        action="append",
        default=[],
        type=_tenant,
        metavar="NAME",
        help=f"one more tenant, with the token {TOKEN}-NAME; may be repeated",
    )
    parser.add_argument(
        "--webhook-secret",
        default="",
        metavar="TEXT",
        help="sign webhooks with keys from this secret; default: one made with the data",
    )
    parser.add_argument(
        "--demo",
        action="store_true",
        help="work on the cluster while its leaders are killed, judge what became of it, and stop",
    )
    number(
        parser,
        "--demo-seconds",
        f"how long leaders are killed, one every five seconds; default: {DEMO_SECONDS}",
        default=DEMO_SECONDS,
    )
    parser.add_argument(
        "--virtual-time",
        action="store_true",
        help="one node whose clock moves on request (POST /v1/codeq/dev/time); "
        "its data never serves real time",
    )
    parser.add_argument("--json", action="store_true", help="print the demo's verdict as JSON")
    add_place(
        parser,
        "--restore",
        "begin with the newest backup of this place; needs a new directory, or --fresh",
        required=False,
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> Exit:
    if options.virtual_time:
        _check_virtual(options)
    options.nodes = options.nodes or (1 if options.virtual_time else _NODES)
    if options.demo and (options.nodes < DEMO_NODES_MIN or options.demo_seconds < 1):
        raise UsageRefused(f"--demo: needs at least {DEMO_NODES_MIN} nodes and a second")
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    directory = options.data.expanduser().resolve()
    nodes = plan(
        directory,
        nodes=options.nodes,
        port_base=port_base_of(options.port_base, environment()),
    )
    with locked(directory):
        # Check before anything is written: a refused start must not leave a directory that fixes a
        # shard count.
        require_free(nodes)
        if options.fresh:
            # What is restored may be kept here, and refers to artifacts.
            empty(directory, keep=() if options.place is None else (ARTIFACTS, BACKUPS))
        _check_time(nodes, virtual=options.virtual_time)
        extras = Extras(
            tenants=tuple(options.tenant),
            webhook_secret=options.webhook_secret,
            virtual_time=options.virtual_time,
        )
        if options.place is not None:
            options.shards = _restore(options, nodes)
        shards = prepare(directory, nodes, shards=options.shards, extras=extras)
        text = banner(nodes, options.data, shards=shards, extras=extras)
        if len(nodes) == 1:
            _embedded(nodes[0], directory, text, virtual=options.virtual_time)
        elif options.demo:
            # Import late: the demo needs the whole client.
            from codeq_cluster.cli.local.dev.demo import demonstrate  # noqa: PLC0415

            return demonstrate(
                nodes, directory, seconds=options.demo_seconds, say=say, as_json=options.json
            )
        else:
            supervisor = Supervisor(nodes, directory, restart=options.restart, say=_say)
            uvloop.run(until_signal(supervisor.run(text)))
    _say("stopped")
    return Exit.OK


def _check_virtual(options: argparse.Namespace) -> None:
    """Refuse what needs other nodes, other tenants or other data than a virtual clock can have.

    Raises:
        UsageRefused: The options exclude one another.
    """
    others = {
        f"--nodes {options.nodes}": options.nodes not in (None, 1),
        "--restart": options.restart,
        "--demo": options.demo,
        # The clock stops for the tasks of one tenant, and would jump over those of others.
        "--tenant": options.tenant,
        "--restore": options.place is not None,
    }
    for other, given in others.items():
        if given:
            raise UsageRefused(
                f"--virtual-time: not with {other}; it runs one node, of one tenant, "
                "on data of its own"
            )


def _check_time(nodes: Sequence[PlannedNode], *, virtual: bool) -> None:
    """Refuse data of the other time before its configuration is written.

    Raises:
        DataDirectoryRefused: A node's data has served the other time.
    """
    # Import late: the storage takes longer than every check before it.
    from codeq_cluster.storage.identity import check_time  # noqa: PLC0415

    for node in nodes:
        check_time(node.data_directory, virtual=virtual)


def _tenant(text: str) -> str:
    if not TENANT.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text}: must match {TENANT.pattern}")
    return text


def _restore(options: argparse.Namespace, nodes: Sequence[PlannedNode]) -> int:
    """Make each node's data from the newest backup, and return its number of shards."""
    place = place_of(options.place, options)
    manifest = chosen(place, "")
    shards: int = options.shards or manifest.shards
    wanted = Wanted(cluster_id=CLUSTER_ID, shards=shards, tenant=None, forget_keys=False)
    with bar("restoring", manifest.size * len(nodes)) as shown:
        for node in nodes:
            restore(
                [RestoreSource(place=place, manifest=manifest)],
                wanted,
                into=node.data_directory,
                node_id=node.id,
                passed=shown.passed,
            )
    _say(f"restored {manifest.tasks} tasks from {manifest.id}")
    return shards


def _say(text: str) -> None:
    print(text, flush=True)


def _embedded(node: PlannedNode, directory: Path, text: str, *, virtual: bool) -> None:
    """Run the only node inside this process, with its log in the file where a child's would be."""
    # Import late: a node's imports take longer than every check before them.
    from codeq_cluster.node.compose import run  # noqa: PLC0415
    from codeq_cluster.telemetry import set_up_logs  # noqa: PLC0415
    from codeq_cluster.virtual_time.movable_time import MovableLoop, MovableTime  # noqa: PLC0415
    from codeq_cluster.virtual_time.virtual_node import virtual_node  # noqa: PLC0415

    settings = load(file=node.config_file).settings
    time = MovableTime()

    async def work(terminal: TextIO) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run(settings))
            await all_ready([node])
            print(text, file=terminal, flush=True)

    async def work_virtually(terminal: TextIO) -> None:
        async with virtual_node(settings, time, token=TOKEN):
            print(text, file=terminal, flush=True)
            await asyncio.Event().wait()

    publish(directory, [(node, os.getpid())])
    try:
        with _output_to(node.log_file) as terminal:
            set_up_logs(settings.log_level, node=settings.node_id)
            if virtual:
                with asyncio.Runner(loop_factory=lambda: MovableLoop(time)) as runner:
                    runner.run(until_signal(work_virtually(terminal)))
            else:
                uvloop.run(until_signal(work(terminal)))
    finally:
        retract(directory)


@contextmanager
def _output_to(log: Path) -> Iterator[TextIO]:
    """Send standard output and error to a file; yields the terminal they went to before."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(descriptor) for descriptor in (1, 2)]
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        with open(before[0], "w", closefd=False) as terminal:
            yield terminal
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in zip((1, 2), before, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)
        os.close(file)
