"""Command `tail`: follow the events of a cluster, one per line, until Ctrl-C.

Each line has a kind. `wrong` is a new problem and `over` one that is gone. `leader` is a shard with
a new leader. `tasks` counts a queue's created, claimed, completed and failed tasks of the last
seconds. `dead` is a task that became a dead letter. `audit` is a change by an admin or an operator.
`away` and `back` are a cluster that stops or starts to answer. Counts of tasks need a token of the
tenant, dead letters and the audit one of its admin; these lines wait while a shard has no leader.
It looks every few seconds: a problem between two looks is not shown.

With --task, --tag, --command or --group it follows tasks instead: each change of one is a line, and
none is left out, whatever happens to nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile

from rich.text import Text

from codeq_cluster.cli.operate import tail_tasks
from codeq_cluster.cli.operate.deaths import Deaths
from codeq_cluster.cli.operate.events import Event, EventKind, audited, begun, between, counted
from codeq_cluster.cli.operate.look import Flows, Look, flowed, taken
from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import cell, console, note
from codeq_cluster.cli.support.times import Times, add_times, times_of
from codeq_cluster.cli.support.watching import INTERVALS_S, add_interval, asked_to_end
from codeq_cluster.client import EventKind as TaskKind
from codeq_cluster.client import Live, Refused, Unreachable
from codeq_cluster.errors import CodeqError

_LINES_DEFAULT = 10
_LINES_MAX = 500  # A page of the audit.
_NEW_MAX = 100  # Of the audit, per look.
_SECONDS_MAX = 7 * 86_400
_GIVE_UP_S = 300.0  # No node answered.

_Read = Callable[[Look], Awaitable[list[Event]]]

_ADMIN = "codeq:admin"
_OF_TENANT = frozenset((_ADMIN, "codeq:view"))
_STYLES: Mapping[str, str] = {
    EventKind.WRONG: "red",
    EventKind.OVER: "green",
    EventKind.AWAY: "red",
    EventKind.BACK: "green",
}


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "tail", help="follow the events of the cluster", description=__doc__
    )
    add_interval(parser)
    number(
        parser,
        "--lines",
        f"earlier audit records, 0 to {_LINES_MAX}; default: {_LINES_DEFAULT}",
        default=_LINES_DEFAULT,
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=[*dict.fromkeys((*EventKind, *TaskKind))],
        metavar="KIND",
        help="print only lines of this kind; may be repeated: "
        f"{', '.join(EventKind)}; of tasks: {', '.join(TaskKind)}; default: all",
    )
    number(parser, "--seconds", "end after so long; default: never", kind=float)
    tail_tasks.add(parser)
    add_times(parser)
    asks(parser, Live, _tail, discover=True)


def _check(options: argparse.Namespace) -> None:
    for flag, value, (least, most) in (
        ("--interval", options.interval, INTERVALS_S),
        ("--lines", options.lines, (0, _LINES_MAX)),
        ("--seconds", options.seconds, (0, _SECONDS_MAX)),
    ):
        if value is not None and not least <= value <= most:
            raise UsageRefused(f"{flag} {value:g}: must be {least:g} to {most:g}")
    if tail_tasks.is_asked(options):
        tail_tasks.check(options)
    elif unknown := set(options.kind or ()) - set(EventKind):
        raise UsageRefused(
            f"--kind {min(unknown)}: is of tasks: select some, or use {', '.join(EventKind)}"
        )


async def _tail(live: Live, options: argparse.Namespace) -> Exit | None:
    _check(options)
    tell = _say_json if options.json else _Lines(times_of(options)).say
    wanted = frozenset(options.kind or (*EventKind, *TaskKind))

    def say(event: Event) -> None:
        if event.kind in wanted:
            tell(event)

    follow = tail_tasks.follow if tail_tasks.is_asked(options) else _follow
    async with asked_to_end(keys=False) as asked:
        try:
            async with asyncio.timeout(options.seconds):
                await follow(live, options, say)
        except TimeoutError:
            return None
    return asked.exit


async def _follow(live: Live, options: argparse.Namespace, say: Callable[[Event], None]) -> None:
    flows = Flows()
    look = await taken(live, flows)
    _tell(begun(look, at=_now()), say)
    reads = _reads(live, look.roles, lines=options.lines)
    _tell(await _read(reads, look), say)
    silent_s: float | None = None
    while True:
        await asyncio.sleep(options.interval)
        try:
            fresh = await taken(live, flows)
        except (Refused, Unreachable) as error:
            now_s = time.monotonic()
            if silent_s is None:
                silent_s = now_s
                say(Event(at=_now(), kind=EventKind.AWAY, text=cell(error)))
            if _is_final(error) or now_s - silent_s > _GIVE_UP_S:
                raise
            continue
        if silent_s is not None:
            silent_s = None
            text = f"{fresh.serving.node} answers"
            say(Event(at=_now(), kind=EventKind.BACK, text=text))
        _tell(between(look, fresh, at=_now()), say)
        look = fresh
        _tell(await _read(reads, look), say)


def _reads(live: Live, roles: frozenset[str], *, lines: int) -> Sequence[_Read]:
    """Return what reads the shards' content, as far as the roles may."""
    of_tenant: list[_Read] = [_Tasks(live).since] if roles & _OF_TENANT else []
    of_admin: list[_Read] = [_Audit(live, lines).since, _Dead(live).since]
    return of_tenant + of_admin * (_ADMIN in roles)


async def _read(reads: Sequence[_Read], look: Look) -> list[Event]:
    """Return what is new in the shards; what cannot be read now is left to the next look."""
    events: list[Event] = []
    try:
        for read in reads:
            events += await read(look)
    except (Refused, Unreachable) as error:
        # A shard without a leader shows nothing, but the node still tells who is gone. The other
        # reads would wait in vain as long as this one.
        if _is_final(error):
            raise
    return events


def _is_final(error: CodeqError) -> bool:
    return isinstance(error, Refused) and error.status in (401, 403)


class _Tasks:
    """Counts the tasks of each queue that were not printed yet."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._last = 0  # The last slot that was counted.

    async def since(self, _look: Look) -> list[Event]:
        """Return the counts since the last call; nothing at the first call."""
        found = await flowed(self._live, since=self._last)
        # Another node's clock may be behind: an event must not be printed twice.
        if found is None or found.last <= self._last:
            return []
        self._last = found.last
        return [*counted(found)]


class _Audit:
    """Finds audit records that were not printed yet."""

    def __init__(self, live: Live, lines: int) -> None:
        self._live = live
        self._lines = lines
        self._newest: set[object] | None = None  # The newest page; the record of an import grows.

    async def since(self, _look: Look) -> list[Event]:
        """Return the records since the last call, the oldest first; at the first call so many."""
        newest = self._newest
        limit = _NEW_MAX if newest is not None else max(self._lines, _NEW_MAX)
        records: Sequence[Mapping[str, object]] = (await self._live.audit(limit=limit)).rows
        self._newest = {_state(record) for record in records}
        if newest is None:
            fresh = records[: self._lines]
        else:
            fresh = [*takewhile(lambda record: _state(record) not in newest, records)]
        return [audited(record) for record in reversed(fresh)]


class _Dead:
    """Finds dead letters that were not printed yet."""

    def __init__(self, live: Live) -> None:
        self._deaths = Deaths(live)
        self._begun = False
        self._number: int | None = None  # When they were read.

    async def since(self, look: Look) -> list[Event]:
        """Return those since the last call; they are read only if their number has changed."""
        number = look.totals.dlq if look.totals else None
        if not self._begun:
            await self._deaths.begin()
            self._begun, self._number = True, number
        if number is None or number == self._number:
            return []
        events = await self._deaths.since()
        self._number = number
        return events


def _state(record: Mapping[str, object]) -> tuple[object, object]:
    return record.get("id"), record.get("detail")


def _tell(events: Iterable[Event], say: Callable[[Event], None]) -> None:
    for event in sorted(events, key=lambda each: each.at):
        say(event)


class _Lines:
    """Prints events for a reader."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._zone = ""  # Of the lines above.

    def say(self, event: Event) -> None:
        """Print one event, and the offset of its time from UTC if the last one had another."""
        zone = self._times.zone(event.at)
        if zone != self._zone:
            note(f"times are UTC{zone}")
            self._zone = zone
        printed = console()
        before = f"{self._times.bare(event.at)}  {event.kind:<6}  "
        line = before + event.text
        if printed.is_terminal:
            # The terminal would break the line within a word.
            line = textwrap.fill(
                line,
                printed.width,
                subsequent_indent=" " * len(before),
                break_long_words=False,
                break_on_hyphens=False,
            )
        printed.print(Text(line, style=_STYLES.get(event.kind, "")), soft_wrap=True)
        sys.stdout.flush()


def _say_json(event: Event) -> None:
    print(json.dumps(event.row, ensure_ascii=False), flush=True)


def _now() -> datetime:
    return datetime.now(UTC)
