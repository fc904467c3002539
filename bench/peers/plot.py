"""Plot: throughput by requests in flight, and CPU per cycle, as one SVG without a library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from bench.job import LOADS
from bench.peers.report import Report, System, spread

_WIDTH, _HEIGHT = 920, 440
_TOP, _BOTTOM = 56, 392
_LEFT, _RIGHT = 70, 500
_BARS_LEFT, _BARS_RIGHT = 590, 890
# Okabe and Ito's palette, which colour-blind readers can tell apart too.
_COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#000000")
_STYLE = "font: 12px sans-serif; fill: #222"


def plot(report: Report) -> str:
    """Return the drawing: lines with the spread of the rounds, and bars for servers and client."""
    told = "Throughput over requests in flight, and CPU time of a cycle"
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{told}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        *_lines(report.systems),
        *_bars(report.systems),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class Scale:
    """A logarithmic axis between two positions."""

    def __init__(self, least: float, most: float, from_px: float, to_px: float) -> None:
        assert 0 < least < most, "an axis from below to above"
        self._least = math.log10(least)
        self._span = math.log10(most) - self._least
        self._from_px, self._to_px = from_px, to_px

    def at(self, value: float) -> float:
        """Return the position of a value, which must be above 0."""
        share = (math.log10(value) - self._least) / self._span
        return self._from_px + share * (self._to_px - self._from_px)


def _lines(systems: Sequence[System]) -> Iterator[str]:
    lanes = {load: count for load, (kind, count) in LOADS.items() if kind == "cycle"}
    found = {
        system.name: {
            count: figure
            for load, count in lanes.items()
            if (figure := spread(system, load, lambda sample: sample.per_s)) and figure.least > 0
        }
        for system in systems
    }
    rates = [v for points in found.values() for f in points.values() for v in (f.least, f.most)]
    yield _text(_LEFT, 24, "cycles a second (create, claim, result), by requests in flight")
    if not rates:
        return
    across = Scale(min(lanes.values()), max(lanes.values()), _LEFT + 14, _RIGHT - 14)
    up = Scale(10 ** math.floor(math.log10(min(rates))), max(rates) * 1.3, _BOTTOM, _TOP)
    yield from _grid(across, up, sorted(lanes.values()), rates)
    for n, (name, points) in enumerate(found.items()):
        colour = _COLOURS[n % len(_COLOURS)]
        where = [(across.at(count), points[count]) for count in sorted(points)]
        path = " ".join(f"{x:.1f},{up.at(figure.median):.1f}" for x, figure in where)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, figure in where:
            low, high = up.at(figure.least), up.at(figure.most)
            yield _line(x, low, x, high, colour)
            tip = f"{escape(name)}: {figure.median:,.0f} cycles/s"
            yield (
                f'<circle cx="{x:.1f}" cy="{up.at(figure.median):.1f}" r="3.5" fill="{colour}">'
                f"<title>{tip}</title></circle>"
            )


def _grid(across: Scale, up: Scale, lanes: Sequence[int], rates: Sequence[float]) -> Iterator[str]:
    for count in lanes:
        x = across.at(count)
        yield _line(x, _BOTTOM, x, _TOP, "#eee")
        yield _text(x, _BOTTOM + 18, str(count), anchor="middle")
    decades = range(math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates))) + 1)
    for value in (step * 10**decade for decade in decades for step in (1, 2, 5)):
        y = up.at(value)
        if _TOP <= y <= _BOTTOM:
            yield _line(_LEFT, y, _RIGHT, y, "#eee")
            yield _text(_LEFT - 8, y + 4, f"{value:,}", anchor="end")


def _bars(systems: Sequence[System]) -> Iterator[str]:
    rows = []
    for n, system in enumerate(systems):
        nodes = spread(system, "cycle@32", lambda sample: sample.cpu_ms())
        client = spread(
            system, "cycle@32", lambda sample: 1000 * sample.generator_s / max(1, sample.tasks)
        )
        rows.append((n, system.name, nodes.median if nodes else 0, client.median if client else 0))
    most = max((nodes + client for _, _, nodes, client in rows), default=0)
    yield _text(_BARS_LEFT, 24, "CPU of a cycle at 32 in flight, ms: servers, client (pale)")
    step = (_BOTTOM - _TOP) / max(1, len(rows))
    for n, name, nodes, client in rows:
        colour, top = _COLOURS[n % len(_COLOURS)], _TOP + n * step
        yield f'<circle cx="{_BARS_LEFT + 5}" cy="{top + 10:.1f}" r="4" fill="{colour}"/>'
        yield _text(_BARS_LEFT + 16, top + 14, name)
        if not most:
            continue
        per_px = (_BARS_RIGHT - _BARS_LEFT - 90) / most
        yield _bar(_BARS_LEFT, top + 20, nodes * per_px, colour, 1.0)
        yield _bar(_BARS_LEFT + nodes * per_px, top + 20, client * per_px, colour, 0.4)
        end = _BARS_LEFT + (nodes + client) * per_px + 6
        yield _text(end, top + 32, f"{nodes:.2f} + {client:.2f}")


def _bar(x: float, y: float, width: float, colour: str, opacity: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="16" fill="{colour}"'
        f' fill-opacity="{opacity}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{_STYLE}">'
        f"{escape(text)}</text>"
    )
