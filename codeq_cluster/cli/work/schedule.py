"""Command `schedule`: the instants that cron expressions and intervals name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.output import document, note, table
from codeq_cluster.cli.support.times import add_times, dated, given_instant, times_of
from codeq_cluster.client import Operator


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "schedule", "when schedules fire", description=__doc__)
    preview = verbs.add_parser(
        "preview",
        help="print the next instants of a schedule, which need not exist",
        description="Print the next instants of a schedule, which need not exist. When clocks "
        "change, a fixed time runs once a day, as with the cron of Vixie and Debian.",
    )
    preview.add_argument(
        "cron",
        nargs="?",
        metavar="CRON",
        help='five fields, as "30 2 * * MON-FRI"; six with seconds first; or @daily and its kin',
    )
    preview.add_argument("--zone", help="its time zone, as Europe/Berlin; default: UTC")
    preview.add_argument(
        "--every", metavar="DURATION", help="an interval instead of CRON, as 15m or 1h30m"
    )
    preview.add_argument(
        "--offset", metavar="DURATION", help="how far it is behind multiples of --every"
    )
    preview.add_argument(
        "--from",
        dest="after",
        type=given_instant,
        metavar="TIME",
        help="only instants after this one, RFC 3339; default: now",
    )
    preview.add_argument("--count", type=int, metavar="N", help="1 to 100; default: 10")
    add_times(preview)
    asks(preview, Operator, _preview)


async def _preview(operator: Operator, options: argparse.Namespace) -> None:
    said = {name: getattr(options, name) for name in ("cron", "zone", "every", "offset")}
    schedule = {name: text for name, text in said.items() if text is not None}
    found = await operator.preview_schedule(schedule, after=options.after, count=options.count)
    if options.json:
        document(found, compact=True)
        return
    rows = [(each["at"], _local(each)) for each in map(dated, found["instants"])]
    table(("AT", f"IN {options.zone or 'UTC'}"), rows, times=times_of(options))
    note(f"rules of time zones: {found['zoneRules']}")


def _local(instant: Mapping[str, Any]) -> str:
    again = ", the second time" if instant["fold"] else ""
    return f"{instant['local'].replace('T', ' ')}{again}"
