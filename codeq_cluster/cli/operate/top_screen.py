"""Top screen: a cluster's state as one screen of any size, the worst news first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeq_cluster.cli.operate.look import Flows, Look, Queue, ShardLine
from codeq_cluster.cli.support.output import cell

_BARS = "▁▂▃▄▅▆▇█"
_CHART_COLUMNS_MAX = 60
_BESIDE_CHART_COLUMNS = 46
_NAME_COLUMNS_MIN = 8
_WIDE_COLUMNS = 100
_TITLE = "bold"
_COLORS = {"bad": "bold red", "warn": "yellow"}


def screen(
    look: Look, before: Look | None, flows: Flows, *, console: Console, said: str
) -> RenderableType:
    """Return a look as lines that fit the console.

    Args:
        before: The previous look, for the shards' rates; None for none.
        console: Its width and height are kept.
        said: The right part of the first line, such as the time.
    """
    head = [_heading(look, said, width=console.width), *_flows(look, flows, console), Text()]
    problems, shards = _problems(look), _shards(look, before)
    listed = _queues(look) if look.totals is not None else _tenants(look)
    # Three titles and two empty lines; a screen that is too low cuts off the end.
    room = max(3, console.height - len(head) - 5)
    of_problems = min(len(problems), max(1, room // 4))
    of_rows = min(len(listed) - 1, max(1, (room - of_problems) // 2))
    of_shards = min(len(shards) - 1, max(1, room - of_problems - of_rows))
    of_rows = min(len(listed) - 1, max(1, room - of_problems - of_shards))
    return Group(
        *head,
        Text("WRONG", style=_TITLE),
        *_fitted(problems, of_problems),
        Text(),
        *_table(shards, of_shards, console.width),
        Text(),
        *_table(listed, of_rows, console.width),
    )


def _heading(look: Look, said: str, *, width: int) -> Text:
    there = sum(node.connected for node in look.serving.nodes)
    nodes = f"{there} of {len(look.serving.nodes)} nodes connected with {look.serving.node}"
    room = max(0, width - len(said) - 3)
    name = f"{look.cluster}   {nodes}"[:room].ljust(room)
    line = Text(f" {name} {said} ", style="reverse", no_wrap=True)
    line.truncate(width, overflow="crop")
    return line


def _flows(look: Look, flows: Flows, console: Console) -> list[Text]:
    rates, totals = look.overview.rates, look.totals
    columns = max(0, min(_CHART_COLUMNS_MAX, console.width - _BESIDE_CHART_COLUMNS))
    lines = []
    if rates is not None:
        charts = ((flows.created, rates.created), (flows.completed, rates.completed))
        for name, (slots, rate) in zip(("created", "completed"), charts, strict=True):
            line = Text.assemble((f"{name:<10}", _TITLE), f"{rate:>10,.1f}/s  ", no_wrap=True)
            if not console.options.ascii_only:
                line.append(_chart(slots, columns), style="cyan")
            lines.append(line)
        lines[0].append(f"  claimed {rates.started:>9,.1f}/s")
        lines[1].append(f"  failed  {rates.failed:>9,.1f}/s")
    if totals is not None:
        counted = (
            ("ready", totals.ready),
            ("delayed", totals.delayed),
            ("in progress", totals.in_progress),
            ("dead", totals.dlq),
            ("completed", totals.completed),
            ("failed", totals.failed),
        )
        words = (Text.assemble((f"{number:,}", _TITLE), f" {name}") for name, number in counted)
        line = Text("   ", no_wrap=True, overflow="ellipsis").join(words)
        lines.append(line)
    return lines


def _chart(slots: Iterable[int], columns: int) -> str:
    """Return the last slots as bars, the newest at the right."""
    last = list(slots)[-columns:] if columns else []
    most = max(last, default=0)
    bars = (_BARS[-(-number * (len(_BARS) - 1) // most) if most else 0] for number in last)
    return "".join(bars).rjust(columns)


def _problems(look: Look) -> list[Text]:
    found = [
        Text(f" {problem.severity:<5}{cell(problem.text)}", style=_COLORS.get(problem.severity, ""))
        for problem in look.overview.problems
    ]
    if look.serving.leaderless:
        numbers = ", ".join(map(str, look.serving.leaderless))
        text = f" bad  Shards without a leader that {look.serving.node} knows: {numbers}"
        found.insert(0, Text(text, style=_COLORS["bad"]))
    if look.trouble:
        found.insert(0, Text(f" bad  {cell(look.trouble)}", style=_COLORS["bad"]))
    for line in found:
        line.no_wrap, line.overflow = True, "ellipsis"
    return found or [Text(" nothing", style="green")]


def _fitted(lines: Sequence[Text], most: int) -> list[Text]:
    """Return at most so many lines; the last one counts those left out."""
    if len(lines) <= most:
        return list(lines)
    if most == 1:
        return list(lines[:1])
    return [*lines[: most - 1], Text(f" and {len(lines) - most + 1} more", style="dim")]


def _shards(look: Look, before: Look | None) -> list[Sequence[str]]:
    """Return the shards as rows below their titles; those without a leader come first."""
    earlier = {} if before is None else {shard.shard_idx: shard for shard in before.shards}
    seconds = 0.0 if before is None else look.at_s - before.at_s
    rows: list[Sequence[str]] = [
        ("SHARD", "LEADER", "TERM", "COMMITTED", "ENTRIES/S", "MOST BEHIND")
    ]
    for shard in sorted(look.shards, key=lambda each: bool(each.leader_id)):
        was = earlier.get(shard.shard_idx)
        rate = "-"
        # This answer may come from another node, which is behind.
        if was is not None and seconds > 0 and shard.commit_index >= was.commit_index:
            rate = f"{(shard.commit_index - was.commit_index) / seconds:,.1f}"
        rows.append(
            (
                str(shard.shard_idx),
                shard.leader_id or "none",
                f"{shard.term:,}",
                f"{shard.commit_index:,}",
                rate,
                _behind(shard),
            )
        )
    return rows


def _behind(shard: ShardLine) -> str:
    """Return the replica that lacks the most committed entries, as far as the node asked knows."""
    away = [peer.id for peer in shard.peers if not peer.connected]
    if away:
        return f"{', '.join(away)} away"
    lacks = {shard.self_id: shard.commit_index - shard.applied_index}
    lacks |= {p.id: shard.commit_index - p.match_index for p in shard.peers if p.match_index}
    name, number = max(lacks.items(), key=lambda each: each[1])
    return f"{name} by {number:,}" if number > 0 else "-"


def _queues(look: Look) -> list[Sequence[str]]:
    """Return the busiest and the longest-waiting queues as rows below their titles."""
    found: dict[str, Queue] = {}
    for queue in (*look.overview.waiting, *look.overview.busy):
        found.setdefault(queue.command, queue)
    count = f"QUEUE (of {look.overview.queues:,})" if look.overview.queues else "QUEUE"
    rows: list[Sequence[str]] = [
        (count, "READY", "DELAYED", "WORKING", "DEAD", "OLDEST", "IN/S", "DONE/S", "FAIL/S")
    ]
    rows += [
        (
            f"{cell(queue.command)}{' (paused)' if queue.paused else ''}",
            f"{queue.ready:,}",
            f"{queue.delayed:,}",
            f"{queue.in_progress:,}",
            f"{queue.dlq:,}",
            _span(queue.oldest_ready_seconds) if queue.ready else "-",
            f"{queue.rates.created:,.1f}",
            f"{queue.rates.completed:,.1f}",
            f"{queue.rates.failed:,.1f}",
        )
        for queue in found.values()
    ]
    return rows


def _tenants(look: Look) -> list[Sequence[str]]:
    """Return the tenants as rows, for an operator, who may not see a tenant's queues."""
    rows: list[Sequence[str]] = [("TENANT", "QUEUES", "READY", "DELAYED", "WORKING", "DEAD")]
    rows += [
        (
            cell(each.tenant or "_"),
            *(f"{n:,}" for n in (each.queues, each.totals.ready, each.totals.delayed)),
            *(f"{n:,}" for n in (each.totals.in_progress, each.totals.dlq)),
        )
        for each in look.overview.tenants or ()
    ]
    return rows


def _span(seconds: int) -> str:
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s}{name}"
    return f"{seconds}s"


def _table(rows: Sequence[Sequence[str]], most: int, columns: int) -> list[RenderableType]:
    """Return titles and at most so many lines; the last one counts those left out.

    Args:
        rows: The titles first; each with a name, then numbers.
        most: At least 1.
        columns: The screen's width; names are cut to fit, numbers never.
    """
    fits = len(rows) - 1 <= most
    shown = rows[: most + 1 if fits else max(2, most)]
    gap = 2 if columns >= _WIDE_COLUMNS else 1
    widths = [max(len(row[position]) for row in shown) for position in range(len(rows[0]))]
    name = max(_NAME_COLUMNS_MIN, columns - sum(widths[1:]) - gap * (len(widths) - 1))
    made = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style=_TITLE)
    for position, title in enumerate(rows[0]):
        made.add_column(Text(title), justify="right" if position else "left", no_wrap=True)
    for first, *others in shown[1:]:
        cut = Text(first)
        cut.truncate(name, overflow="ellipsis")
        made.add_row(cut, *map(Text, others))
    left = len(rows) - len(shown)
    return [made, Text(f"and {left} more", style="dim")] if left and most > 1 else [made]
