"""Command `top`: flows, problems, shards and queues on one screen, until q or Ctrl-C.

It shows the parts of the admin page that the token may see: a viewer or an admin sees its tenant,
an operator the nodes and each tenant's share. The queues are the longest-waiting and the busiest.
Rates are those of the last minute, the charts have slots of five seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from datetime import UTC, datetime

from msgspec import to_builtins
from rich.live import Live as Screen

from codeq_cluster.cli.operate.look import Flows, Look, taken
from codeq_cluster.cli.operate.top_screen import screen
from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import console, document
from codeq_cluster.cli.support.times import add_times, times_of
from codeq_cluster.cli.support.watching import INTERVALS_S, add_interval, asked_to_end
from codeq_cluster.client import Live, Refused, Unreachable

_LINES_MAX = 60  # Where there is no terminal with a size.


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser("top", help="watch the cluster on one screen", description=__doc__)
    add_interval(parser)
    parser.add_argument(
        "--once", action="store_true", help="print one look and end, as without a terminal"
    )
    add_times(parser)
    asks(parser, Live, _top, discover=True)


async def _top(live: Live, options: argparse.Namespace) -> Exit | None:
    least, most = INTERVALS_S
    if not least <= options.interval <= most:
        raise UsageRefused(f"--interval {options.interval:g}: must be {least:g} to {most:g}")
    flows = Flows()
    look = await taken(live, flows)
    if options.json:
        document(_plain(look), compact=True)
        return None
    if options.once or not sys.stdout.isatty():
        printed = console()
        printed.height = max(printed.height, _LINES_MAX)
        printed.print(screen(look, None, flows, console=printed, said=_now(options)))
        return None
    async with asked_to_end(keys=True) as asked:
        await _watch(live, look, flows, options)
    return asked.exit


async def _watch(live: Live, look: Look, flows: Flows, options: argparse.Namespace) -> None:
    """Show each new look; while there is none, show the last one with the reason."""
    before: Look | None = None
    shown = console()
    with Screen(console=shown, screen=True, auto_refresh=False) as terminal:
        while True:
            now = f"every {options.interval:g} s, q ends   {_now(options)}"
            terminal.update(screen(look, before, flows, console=shown, said=now), refresh=True)
            await asyncio.sleep(options.interval)
            try:
                fresh = await taken(live, flows)
            except (Refused, Unreachable) as error:
                if isinstance(error, Refused) and error.status in (401, 403):
                    raise
                look = replace(look, trouble=f"no answer, what follows is old: {error}")
            else:
                before, look = look, fresh


def _now(options: argparse.Namespace) -> str:
    return times_of(options).text(datetime.now(UTC))


def _plain(look: Look) -> dict[str, object]:
    """Return the JSON document, named as in the HTTP API."""
    return {
        "cluster": look.cluster,
        "node": look.serving.node,
        "nodes": to_builtins(look.serving.nodes),
        "totals": to_builtins(look.totals),
        **to_builtins(look.overview),
        "shards": to_builtins(look.shards),
        "trouble": look.trouble or None,
    }
