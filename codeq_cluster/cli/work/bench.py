"""Command `bench`: measure how fast a cluster creates, claims and completes tasks from here.

It makes its own queue and keeps so many creates and results in flight for some seconds. Then it
completes the tasks it created and cancels those it could not complete. Completed tasks stay until
their retention is over. It is real load: other users of the cluster will notice it.
"""

from __future__ import annotations

import argparse
import secrets
import time
from array import array

from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import cell, document, note, table
from codeq_cluster.cli.support.progress import bar
from codeq_cluster.cli.support.target import Caller, ca_of, token_for, urls_of
from codeq_cluster.cli.work.bench_load import Bench, BenchLoad, Figures
from codeq_cluster.client import Client, Leases

_BOUNDS = {
    "seconds": (1, 600),
    "in_flight": (1, 256),
    "batch": (1, 100),
    "payload_bytes": (2, 65_536),
}
_DEFAULTS = {"seconds": 10, "in_flight": 32, "batch": 1, "payload_bytes": 128}
_DEADLINE_S = 10.0
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench", help="measure how fast a cluster is from here", description=__doc__
    )
    for name, words in (
        ("seconds", "tasks are created for so long"),
        ("in_flight", "creates under way at once, and as many results"),
        ("batch", "tasks of one create"),
        ("payload_bytes", "of each task"),
    ):
        least, most = _BOUNDS[name]
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=int,
            default=_DEFAULTS[name],
            metavar="N",
            help=f"{words}, {least} to {most}; default: {_DEFAULTS[name]}",
        )
    parser.add_argument("--queue", "--event", metavar="NAME", help="the queue; default: a new one")
    parser.add_argument(
        "--worker-token",
        metavar="TOKEN",
        help="token that claims; default: --token, else as for worker",
    )
    asks(parser, Client, _bench, deadline_s=_DEADLINE_S)


async def _bench(client: Client, options: argparse.Namespace) -> Exit:
    for name, (least, most) in _BOUNDS.items():
        value = getattr(options, name)
        if not least <= value <= most:
            raise UsageRefused(f"--{name.replace('_', '-')} {value}: must be {least} to {most}")
    load = BenchLoad(
        queue=options.queue or f"codeq-bench-{secrets.token_hex(4)}",
        seconds=options.seconds,
        in_flight=options.in_flight,
        batch=options.batch,
        payload_bytes=options.payload_bytes,
    )
    status = await client.raft_status()  # Fails early for a wrong URL or token.
    worker = options.worker_token or options.token or token_for(options, Caller.WORKER)
    leases = Leases(
        urls_of(options),
        token=worker,
        deadline_s=_DEADLINE_S,
        discover=False,
        ca_file=ca_of(options),
    )
    began_s = time.monotonic()
    with bar("loading", options.seconds, what="s") as shown:

        def on_progress(figures: Figures) -> None:
            words = f"{figures.created:,} created, {figures.completed:,} completed"
            shown.stands_at(min(time.monotonic() - began_s, options.seconds), words)

        async with leases:
            figures = await Bench(client, leases, load, on_progress=on_progress).run()
    durability = str((status.get("groups") or [{}])[0].get("durability", "unknown"))
    _show(load, figures, durability, options)
    if figures.failures:
        note(f"{figures.failures} requests failed, the first: {cell(figures.first_failure)}")
    if figures.left:
        note(f"{figures.left} tasks were not completed in time, and are cancelled")
    return Exit.ERROR if figures.failures or figures.left else Exit.OK


def _show(load: BenchLoad, figures: Figures, durability: str, options: argparse.Namespace) -> None:
    rows = {
        "created": (figures.created, figures.load_s, figures.creating),
        "completed": (figures.completed, figures.whole_s, figures.completing),
    }
    if options.json:
        shown: dict[str, object] = {
            "queue": load.queue,
            "inFlight": load.in_flight,
            "batch": load.batch,
            "payloadBytes": load.payload_bytes,
            "durability": durability,
            "failures": figures.failures,
            "left": figures.left,
        }
        for name, (count, seconds, times) in rows.items():
            shown[name] = {
                "count": count,
                "seconds": round(seconds, 3),
                "perSecond": round(count / seconds, 1),
                **{f"{each}Ms": round(ms, 2) for each, ms in _quantiles(times).items()},
            }
        document(shown, compact=True)
        return
    table(
        ("TASKS", "COUNT", "A SECOND", *(f"{name.upper()} MS" for name in _QUANTILES)),
        (
            (
                name,
                f"{count:,}",
                f"{count / seconds:,.1f}",
                *(f"{ms:,.1f}" for ms in _quantiles(times).values()),
            )
            for name, (count, seconds, times) in rows.items()
        ),
    )
    note(
        f"{load.in_flight} in flight, {load.batch} a create, {load.payload_bytes} bytes each; "
        f"durability: {durability}"
    )
    note("created: until the answer; completed: from the create until the result is in")


def _quantiles(times: array[float]) -> dict[str, float]:
    """Return percentiles of the times in milliseconds; zeros if there are none."""
    found = sorted(times)
    if not found:
        return dict.fromkeys(_QUANTILES, 0.0)
    last = len(found) - 1
    return {name: 1000 * found[round(last * share)] for name, share in _QUANTILES.items()}
