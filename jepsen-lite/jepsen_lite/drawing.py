"""Drawing: a history as SVG, time from left to right."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from jepsen_lite.history import F, Type
from jepsen_lite.operations import NEVER_NS, SECOND, Fault, History, Op

WIDTH = 1180
LEFT = 118  # The width of the labels.
ROW = 16
LATENCY_POINTS_MAX = 6000
_LATENCY_MS = (1, 10, 100, 1000, 10_000)

# Jepsen's own colours for outcomes.
COLOURS = {Type.OK: "#6db6fe", Type.INFO: "#ffaa26", Type.FAIL: "#feb5da"}
_LEADERS = ("#2f6f4f", "#8a5a00", "#5b3a8c", "#1f6f8b", "#8b1f4a")
_FAULTS = {
    "kill": "#e9a0a5",
    "pause": "#c5a0e9",
    "partition": "#a0b1e9",
    "packets": "#a0dbe9",
    "reset": "#e9c3a0",
    "restart": "#c8e9a0",
    "power": "#d96f77",
    "away": "#c98f6f",
    "disk-slow": "#e9dca0",
    "disk-full": "#d9c36f",
    "disk-error": "#c9a83f",
    "corrupt": "#8f6fc9",
    "clock": "#e9a0d0",
    "drift": "#f0c0e0",
    "membership": "#8fc9a8",
    "wipe": "#a87878",
    "install": "#b5835a",
    "sink": "#9fb8ad",
    "hostile": "#6f6f6f",
}


class Scale:
    """Converts nanoseconds to pixels."""

    def __init__(self, begun_ns: int, ended_ns: int, *, width: int = WIDTH) -> None:
        self.begun_ns = begun_ns
        self.ended_ns = max(ended_ns, begun_ns + 1)
        self.width = width
        self._pixels = (width - LEFT - 10) / (self.ended_ns - self.begun_ns)

    def x(self, ns: int) -> float:
        """Return the position of an instant, clamped to the edges."""
        inside = min(max(ns, self.begun_ns), self.ended_ns)
        return LEFT + (inside - self.begun_ns) * self._pixels


def bands(history: History, scale: Scale, height: int) -> Iterator[str]:
    """Shade the faults."""
    for fault in history.faults:
        left, right = scale.x(fault.begun_ns), scale.x(fault.ended_ns)
        colour = _FAULTS.get(fault.name, "#ccc")
        yield (
            f'<rect x="{left:.1f}" y="0" width="{max(1.0, right - left):.1f}" height="{height}"'
            f' fill="{colour}" opacity="0.35">{_title(_told(fault))}</rect>'
        )


def axis(scale: Scale, height: int) -> Iterator[str]:
    """Mark the seconds."""
    seconds = (scale.ended_ns - scale.begun_ns) / SECOND
    steps = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
    step = next((s for s in steps if seconds / s <= 16), 1200)
    first = math.ceil(scale.begun_ns / SECOND / step)
    for n in range(first, int(scale.ended_ns / SECOND / step) + 1):
        x = scale.x(round(n * step * SECOND))
        yield f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height}" class="grid"/>'
        yield f'<text x="{x:.1f}" y="{height + 12}" class="tick">{n * step:g} s</text>'


def faults(history: History) -> str:
    """Draw a row for each kind of fault, with its targets, and for each shard, with its leaders."""
    scale = Scale(0, history.end_ns)
    kinds = sorted({fault.name for fault in history.faults})
    shards = sorted({g.shard for event in history.statuses for g in event.out.groups})
    rows = [*_phases(history, scale)]
    y = ROW + 4
    for kind in kinds:
        rows.append(_label(y, kind))
        rows += [_bar(fault, scale, y) for fault in history.faults if fault.name == kind]
        y += ROW + 4
    for shard in shards:
        rows.append(_label(y, f"leader of {shard}"))
        rows += _leaders(history, shard, scale, y)
        y += ROW + 4
    return _svg(y, [*axis(scale, y), *rows])


def rates(history: History) -> str:
    """Draw operations per second by outcome."""
    height = 120
    scale = Scale(0, history.end_ns)
    seconds = max(1, math.ceil(history.end_ns / SECOND))
    bins: dict[Type, list[int]] = {kind: [0] * (seconds + 1) for kind in COLOURS}
    for op in history.ops:
        if op.done_ns != NEVER_NS:
            bins[op.type][op.done_ns // SECOND] += 1
    # The drain and the final reads run at full speed; the scale cuts them off, or the load would
    # look flat.
    until = history.phases.get("converged")
    of_load = slice(0, until.t_ns // SECOND if until else None)
    most = max([1, *(sum(each) for each in list(zip(*bins.values(), strict=True))[of_load])])
    drawn = [*bands(history, scale, height), *axis(scale, height)]
    base = [0.0] * (seconds + 1)
    for kind, counted in bins.items():
        for second, count in enumerate(counted):
            if count:
                room = max(0.0, height - base[second])
                tall = min(room, count / most * (height - 10))
                left, right = scale.x(second * SECOND), scale.x((second + 1) * SECOND)
                base[second] += tall
                y = height - base[second]
                drawn.append(
                    f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(0.6, right - left - 0.4):.1f}"'
                    f' height="{tall:.1f}" fill="{COLOURS[kind]}"/>'
                )
    drawn += [f'<text x="4" y="14" class="label">{most} a second</text>']
    return _svg(height, drawn)


def latencies(history: History) -> str:
    """Draw the durations of operations on a logarithmic scale, by outcome."""
    height = 190
    scale = Scale(0, history.end_ns)
    span = math.log10(_LATENCY_MS[-1] * 3)

    def y_of(ms: float) -> float:
        return height - max(0.0, math.log10(max(ms, 1))) / span * (height - 10)

    drawn = [*bands(history, scale, height), *axis(scale, height)]
    for ms in _LATENCY_MS:
        drawn.append(
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y_of(ms):.1f}" y2="{y_of(ms):.1f}" class="grid"/>'
        )
        drawn.append(_label(round(y_of(ms)) - ROW + 6, f"{ms} ms"))
    # The duration of a claim that waits for work says nothing about the broker's speed.
    ended = [op for op in history.ops if op.done_ns != NEVER_NS and not op.args.wait_ms]
    every = max(1, -(-len(ended) // LATENCY_POINTS_MAX))
    # Outcomes other than ok are drawn last, so that nothing hides them.
    shown = [op for n, op in enumerate(ended) if op.ok and n % every == 0]
    shown += [op for op in ended if not op.ok]
    for op in shown:
        took_ms = (op.done_ns - op.call_ns) / 1e6
        drawn.append(
            f'<circle cx="{scale.x(op.call_ns):.1f}" cy="{y_of(took_ms):.1f}" r="1.5"'
            f' fill="{COLOURS[op.type]}"/>'
        )
    return _svg(height, drawn)


def processes(history: History) -> str:
    """Draw a row for each client, the worst outcome of each moment in front."""
    scale = Scale(0, history.end_ns)
    by_client: dict[str, list[Op]] = defaultdict(list)
    for op in history.ops:
        by_client[op.p.partition(".")[0]].append(op)
    names = sorted(by_client, key=_natural)
    row = 9
    height = row * len(names)
    drawn = [*bands(history, scale, height), *axis(scale, height)]
    for n, name in enumerate(names):
        drawn.append(f'<text x="4" y="{n * row + 8}" class="small">{escape(name)}</text>')
        drawn += _strip(by_client[name], scale, n * row, row - 1)
    return _svg(height, drawn)


def excerpt(history: History, ops: Sequence[Op]) -> str:
    """Draw some operations one below the other, with their texts."""
    begun = min(op.call_ns for op in ops)
    answered = [op.done_ns for op in ops if op.done_ns != NEVER_NS]
    ended = max([*answered, *(op.call_ns for op in ops)])
    margin = max((ended - begun) // 20, SECOND // 100)
    scale = Scale(begun - margin, ended + margin, width=WIDTH)
    row = 20
    height = row * len(ops) + 4
    drawn = [*bands(history, scale, height), *axis(scale, height)]
    for n, op in enumerate(sorted(ops, key=lambda op: op.call_ns)):
        left = scale.x(op.call_ns)
        right = scale.x(min(op.done_ns, scale.ended_ns))
        y = n * row + 3
        drawn.append(f'<text x="4" y="{y + 11}" class="label">{escape(op.p)} @ {op.node}</text>')
        drawn.append(
            f'<rect x="{left:.1f}" y="{y}" width="{max(2.0, right - left):.1f}" height="{row - 6}"'
            f' fill="{COLOURS[op.type]}" stroke="#333" stroke-width="0.4">{_title(said(op))}</rect>'
        )
        beside, anchor = right + 4, "start"
        if right > WIDTH - 320:
            # Before the bar if there is room, or else on it.
            beside, anchor = (left - 4, "end") if left > LEFT + 320 else (left + 4, "start")
        drawn.append(
            f'<text x="{beside:.1f}" y="{y + 11}" class="label" text-anchor="{anchor}">'
            f"{escape(said(op)[:90])}</text>"
        )
    return _svg(height, drawn)


def said(op: Op) -> str:
    """Return an operation in one line: the request and the answer."""
    asked = op.args
    parts = [op.f.value]
    parts += [f"token {asked.token}"] if asked.token else []
    parts += [f"key {asked.idempotency_key}"] if asked.idempotency_key else []
    parts += [f"lease {asked.lease_ms / 1000:g} s"] if asked.lease_ms else []
    parts += [f"delay {asked.delay_ms / 1000:g} s"] if asked.delay_ms else []
    parts += [asked.content] if op.f is F.RESULT else []
    out = op.out
    back = [op.type.value]
    back += [f"{out.http} {out.code}".strip()] if out.http or out.code else []
    back += [f"token {out.token}, attempt {out.attempt}"] if out.token else []
    back += [f"{out.status} {out.location} {out.content}"] if out.status else []
    back += ["absent"] if out.absent else []
    back += ["dead"] if out.dead else []
    return f"{' '.join(parts)} -> {' '.join(back)}"


def legend(history: History) -> str:
    """Return the legend: the colours of outcomes and of the kinds of faults in this run."""
    struck = {fault.name for fault in history.faults}
    chips = [(kind.value, colour) for kind, colour in COLOURS.items()]
    chips += [(name, colour) for name, colour in _FAULTS.items() if name in struck]
    return "".join(
        f'<span class="chip"><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in chips
    )


def _phases(history: History, scale: Scale) -> Iterator[str]:
    free = 0.0
    for name, event in history.phases.items():
        x = scale.x(event.t_ns)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{ROW}" stroke="#555"/>'
        if x >= free:
            yield f'<text x="{x + 2:.1f}" y="11" class="small">{escape(name)}</text>'
            free = x + 50  # As wide as a name.


def _bar(fault: Fault, scale: Scale, y: int) -> str:
    left, right = scale.x(fault.begun_ns), scale.x(fault.ended_ns)
    names = escape(",".join(fault.nodes))
    edge = "" if fault.applied else ' stroke="red" stroke-dasharray="2"'
    return (
        f'<rect x="{left:.1f}" y="{y}" width="{max(2.0, right - left):.1f}" height="{ROW}"'
        f' fill="{_FAULTS.get(fault.name, "#ccc")}"{edge}>{_title(_told(fault))}</rect>'
        f'<text x="{left + 2:.1f}" y="{y + 12}" class="small">{names}</text>'
    )


def _leaders(history: History, shard: int, scale: Scale, y: int) -> Iterator[str]:
    """Yield the leaders, from the first time each was seen to the last."""
    seen = [
        (event.t_ns, group.term, event.node)
        for event in history.statuses
        for group in event.out.groups
        if group.shard == shard and group.leads
    ]
    nodes = sorted({event.node for event in history.statuses})
    for (term, node), leadership in groupby(seen, key=lambda each: each[1:]):
        times = [each[0] for each in leadership]
        left, right = scale.x(times[0]), scale.x(times[-1])
        colour = _LEADERS[nodes.index(node) % len(_LEADERS)]
        yield (
            f'<rect x="{left:.1f}" y="{y}" width="{max(2.0, right - left):.1f}" height="{ROW}"'
            f' fill="{colour}">{_title(f"{node} leads shard {shard} in term {term}")}</rect>'
            f'<text x="{left + 2:.1f}" y="{y + 12}" class="small light">{node} t{term}</text>'
        )


def _strip(ops: Iterable[Op], scale: Scale, y: int, height: int) -> Iterator[str]:
    """Draw a client's operations; of those that share a pixel the worst is shown."""
    rank = {Type.OK: 1, Type.FAIL: 2, Type.INFO: 3}
    worst: dict[int, Type] = {}
    for op in ops:
        right = scale.x(min(op.done_ns, scale.ended_ns))
        for x in range(int(scale.x(op.call_ns)), int(right) + 1):
            if rank[op.type] > rank.get(worst.get(x, Type.INVOKE), 0):
                worst[x] = op.type
    run: list[int] = []
    for x in [*sorted(worst), -1]:
        if run and (x != run[-1] + 1 or worst[x] is not worst[run[0]]):
            colour = COLOURS[worst[run[0]]]
            yield (
                f'<rect x="{run[0]}" y="{y}" width="{len(run)}" height="{height}" fill="{colour}"/>'
            )
            run = []
        run.append(x)


def _label(y: int, text: str) -> str:
    return f'<text x="4" y="{y + 12}" class="label">{escape(text)}</text>'


def _told(fault: Fault) -> str:
    seconds = (fault.ended_ns - fault.begun_ns) / SECOND
    struck = f"{fault.applied} struck" if fault.applied else "NOT SEEN TO BE APPLIED"
    return f"{fault.name} of {', '.join(fault.nodes)} for {seconds:.1f} s ({struck}) {fault.detail}"


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _natural(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, 0)


def _svg(height: int, drawn: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height + 16}" width="100%" role="img">{"".join(drawn)}</svg>'
    )
