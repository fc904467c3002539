"""Lifecycle: the state diagram of a task, drawn from the core's table of transitions.

The table has the transitions, and this module has their positions. A transition without a position
is an error, so the diagram cannot leave one out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from codeq_cluster.core.lifecycle import ARROWS
from codeq_cluster.core.task import State

_START, _END = "start", "end"
# Sets of states with a transition of the same cause; such a set is drawn as one arrow.
_GROUPS: Mapping[str, frozenset[State]] = {
    "waiting": frozenset({State.READY, State.DELAYED, State.HELD}),
    "not ended": frozenset({State.READY, State.DELAYED, State.HELD, State.LEASED}),
    "ready or held": frozenset({State.READY, State.HELD}),
    "ready or delayed": frozenset({State.READY, State.DELAYED}),
    "ended": frozenset({State.DONE, State.FAILED, State.DEAD}),
}
_ORDER = (_START, *(state.name for state in State), *_GROUPS, _END)

_HALF_WIDTH, _HALF_HEIGHT = 70, 28
_LINE_HEIGHT = 16


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a state: its centre, its colour, and its name in the HTTP API."""

    x: int
    y: int
    colour: str
    status: str


@dataclass(frozen=True, slots=True)
class _Way:
    """The path of an arrow, and the place of its text."""

    path: str
    x: int
    y: int
    anchor: str = "middle"


_PLACES: Mapping[State, _Place] = {
    State.DELAYED: _Place(300, 150, "#0b7285", "PENDING"),
    State.HELD: _Place(300, 240, "#8a6100", "PENDING"),
    State.READY: _Place(300, 330, "#1f5fbf", "PENDING"),
    State.LEASED: _Place(620, 330, "#7048b8", "IN_PROGRESS"),
    State.FAILED: _Place(1010, 150, "#b5541c", "FAILED"),
    State.DONE: _Place(1010, 330, "#1d7a3e", "COMPLETED"),
    State.DEAD: _Place(1010, 510, "#b3261e", "FAILED"),
}
# Left, top, width, height.
_BOXES: Mapping[str, tuple[int, int, int, int]] = {
    "not ended": (180, 50, 560, 370),
    "waiting": (200, 84, 200, 316),
    "ended": (910, 50, 200, 530),
}
_WAYS: Mapping[tuple[str, str], _Way] = {
    (_START, "DELAYED"): _Way("M66 150 H224", 62, 140, "start"),
    (_START, "READY"): _Way("M66 330 H224", 62, 320, "start"),
    (_START, "HELD"): _Way("M66 240 H224", 62, 230, "start"),
    ("DELAYED", "READY"): _Way("M350 178 C400 214 400 266 352 297", 392, 214, "start"),
    ("DELAYED", "HELD"): _Way("M260 178 V206", 210, 198),
    ("HELD", "READY"): _Way("M260 268 V296", 218, 288),
    ("HELD", "DELAYED"): _Way("M330 212 V184", 338, 202, "start"),
    ("HELD", "HELD"): _Way("M370 226 C400 214 400 266 376 254", 382, 268, "start"),
    ("HELD", "DEAD"): _Way("M370 262 C620 420 800 440 936 500", 640, 452, "start"),
    ("READY", "HELD"): _Way("M300 302 V274", 308, 292, "start"),
    ("LEASED", "HELD"): _Way("M566 302 C530 262 460 240 376 240", 452, 206, "start"),
    ("DEAD", "HELD"): _Way(
        "M940 530 Q930 600 900 600 H220 Q210 600 210 590 V256 Q210 246 224 246", 560, 614
    ),
    ("READY", "LEASED"): _Way("M370 320 H544", 470, 310),
    ("LEASED", "READY"): _Way("M550 342 H376", 476, 362),
    ("LEASED", "DELAYED"): _Way("M580 302 C570 190 500 150 376 150", 492, 150, "start"),
    ("LEASED", "LEASED"): _Way("M610 302 C590 240 680 240 652 297", 634, 246),
    ("LEASED", "FAILED"): _Way("M690 318 C800 300 800 170 934 162", 806, 232, "start"),
    ("LEASED", "DONE"): _Way("M690 330 H934", 828, 320),
    ("LEASED", "DEAD"): _Way("M690 344 C860 350 1010 400 1010 476", 898, 424, "end"),
    ("not ended", "FAILED"): _Way("M740 138 H934", 828, 128),
    ("waiting", "FAILED"): _Way("M400 96 H1000 Q1010 96 1010 106 V116", 620, 88),
    ("ready or held", "DEAD"): _Way("M360 358 V476 Q360 486 370 486 H934", 560, 478),
    ("ready or delayed", "READY"): _Way("M236 358 C226 384 258 384 248 363", 208, 392, "start"),
    ("ready or delayed", "DELAYED"): _Way("M310 122 C300 100 340 100 330 117", 325, 100),
    ("waiting", "DEAD"): _Way("M340 400 V500 Q340 510 350 510 H934", 560, 500),
    ("DEAD", "READY"): _Way("M940 524 Q930 548 900 548 H270 Q260 548 260 538 V364", 560, 566),
    ("FAILED", "FAILED"): _Way("M1060 178 C1060 200 1020 200 1020 184", 1104, 210, "end"),
    ("DONE", "DONE"): _Way("M1060 358 C1060 380 1020 380 1020 364", 1104, 390, "end"),
    ("DEAD", "DEAD"): _Way("M1060 538 C1060 560 1020 560 1020 544", 1104, 570, "end"),
    ("ended", _END): _Way("M1110 330 H1274", 1190, 304),
}
_DOTS = ((58, 150), (58, 240), (58, 330))  # The start of every task.
_DOT_END = (1286, 330)


def drawing() -> str:
    """Return the diagram as an SVG document."""
    parts = [
        *_boxes(),
        *(line for ends, causes in _arrows().items() for line in _arrow(_WAYS[ends], causes)),
        *(f'<circle cx="{x}" cy="{y}" r="7" fill="#444"/>' for x, y in _DOTS),
        '<circle cx="{}" cy="{}" r="9" fill="none" stroke="#444" stroke-width="1.5"/>'.format(
            *_DOT_END
        ),
        '<circle cx="{}" cy="{}" r="5" fill="#444"/>'.format(*_DOT_END),
        *(line for state, place in _PLACES.items() for line in _state(state, place)),
    ]
    return "\n".join((_HEAD, *parts, "</svg>", ""))


_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1320 640" role="img" \
aria-label="The states of a task and what leads from one to another">
<style>
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #333 }
.name { font-size: 17px; font-weight: 600; fill: #fff }
.status { font-size: 11px; letter-spacing: 0.5px; fill: #fff }
.box { fill: none; stroke: #bbb; stroke-dasharray: 5 4 }
.label { fill: #777; font-style: italic }
.arrow { fill: none; stroke: #555; stroke-width: 1.5; marker-end: url(#head) }
.word { paint-order: stroke; stroke: #fff; stroke-width: 4px; stroke-linejoin: round }
</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="8" markerHeight="8" \
orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="#555"/></marker></defs>
<rect width="1320" height="640" rx="12" fill="#fff"/>"""


def _arrows() -> dict[tuple[str, str], list[str]]:
    """Return the causes of each arrow by its ends, with those of one group merged."""
    befores: dict[tuple[type | None, str, str], set[State | None]] = {}
    for arrow in ARROWS:
        after = _END if arrow.after is None else arrow.after.name
        befores.setdefault((arrow.operation, arrow.cause, after), set()).add(arrow.before)
    drawn: dict[tuple[str, str], list[str]] = {}
    for (_, cause, after), states in befores.items():
        known = drawn.setdefault((_source(states), after), [])
        known += [cause] if cause not in known else []
    return dict(sorted(drawn.items(), key=lambda each: tuple(map(_ORDER.index, each[0]))))


def _source(states: set[State | None]) -> str:
    if states == {None}:
        return _START
    if len(states) == 1:
        [state] = states
        assert state is not None
        return state.name
    [group] = [name for name, members in _GROUPS.items() if members == states]
    return group


def _arrow(way: _Way, causes: Sequence[str]) -> Iterator[str]:
    yield f'<path class="arrow" d="{way.path}"/>'
    for number, cause in enumerate(causes):
        y = way.y + number * _LINE_HEIGHT
        yield (
            f'<text class="word" x="{way.x}" y="{y}" text-anchor="{way.anchor}">'
            f"{escape(cause)}</text>"
        )


def _state(state: State, place: _Place) -> Iterator[str]:
    left, top = place.x - _HALF_WIDTH, place.y - _HALF_HEIGHT
    yield (
        f'<rect x="{left}" y="{top}" width="{2 * _HALF_WIDTH}" height="{2 * _HALF_HEIGHT}" '
        f'rx="10" fill="{place.colour}"/>'
    )
    yield (
        f'<text class="name" x="{place.x}" y="{place.y}" text-anchor="middle">'
        f"{state.name.lower()}</text>"
    )
    yield (
        f'<text class="status" x="{place.x}" y="{place.y + 17}" text-anchor="middle">'
        f"{escape(place.status)}</text>"
    )


def _boxes() -> Iterator[str]:
    for name, (x, y, width, height) in _BOXES.items():
        yield f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="14"/>'
        yield f'<text class="label" x="{x + 14}" y="{y + 20}">{name}</text>'
