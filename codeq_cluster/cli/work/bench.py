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
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import cell, document, note, table
from codeq_cluster.cli.support.progress import bar
from codeq_cluster.cli.support.target import Caller, ca_of, token_for, urls_of
from codeq_cluster.cli.support.watching import asked_to_end
from codeq_cluster.cli.work.bench_load import Bench, BenchLoad, Figures
from codeq_cluster.cli.work.load_flags import Number, add_load_flags, check_empty, check_numbers
from codeq_cluster.client import Client, Leases

_NUMBERS = {
    "seconds": Number("tasks are created for so long", 1, 600, 10),
    "in_flight": Number("creates under way at once, and as many results", 1, 256, 32),
    "batch": Number("tasks of one create", 1, 100, 1),
    "payload_bytes": Number("of each task", 2, 65_536, 128),
}
_DEADLINE_S = 10.0
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench", help="measure how fast a cluster is from here", description=__doc__
    )
    add_load_flags(parser, _NUMBERS)
    asks(parser, Client, _bench, deadline_s=_DEADLINE_S)


async def _bench(client: Client, options: argparse.Namespace) -> Exit:
    check_numbers(options, _NUMBERS)
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

        async with leases, asked_to_end(keys=False) as asked:
            if options.queue:
                await check_empty(load.queue, leases, options)
            figures = await Bench(client, leases, load, on_progress=on_progress).run()
    if asked.exit is not None:
        note(f"interrupted: the tasks in queue {load.queue} are cancelled")
        return asked.exit
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
