"""Lifecycle: the state diagram of a task, drawn from the table of transitions.

The table has the transitions, and this module has their positions. A transition without a position
is an error, so the diagram cannot leave one out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from codeq_cluster.core.task import State
from docs.tools.transitions import ARROWS

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
    State.DELAYED: _Place(460, 150, "#0b7285", "PENDING"),
    State.HELD: _Place(460, 400, "#8a6100", "PENDING"),
    State.READY: _Place(460, 680, "#1f5fbf", "PENDING"),
    State.LEASED: _Place(940, 680, "#7048b8", "IN_PROGRESS"),
    State.FAILED: _Place(1400, 150, "#b5541c", "FAILED"),
    State.DONE: _Place(1400, 400, "#1d7a3e", "COMPLETED"),
    State.DEAD: _Place(1400, 680, "#b3261e", "FAILED"),
}
# Left, top, width, height.
_BOXES: Mapping[str, tuple[int, int, int, int]] = {
    "not ended": (320, 40, 730, 740),
    "waiting": (350, 76, 300, 684),
    "ended": (1300, 50, 200, 710),
}
_WAYS: Mapping[tuple[str, str], _Way] = {
    (_START, "DELAYED"): _Way("M66 150 H384", 62, 172, "start"),
    (_START, "READY"): _Way("M66 680 H384", 62, 702, "start"),
    (_START, "HELD"): _Way("M66 400 H384", 62, 422, "start"),
    ("DELAYED", "READY"): _Way("M530 165 C690 250 690 560 532 662", 650, 300, "start"),
    ("DELAYED", "HELD"): _Way("M410 178 V366", 402, 260, "end"),
    ("HELD", "READY"): _Way("M410 428 V646", 402, 560, "end"),
    ("HELD", "DELAYED"): _Way("M440 372 V184", 448, 240, "start"),
    ("HELD", "HELD"): _Way("M500 428 C500 462 540 462 520 434", 536, 466, "start"),
    ("HELD", "DEAD"): _Way("M530 410 C900 430 1150 560 1338 646", 1000, 500, "start"),
    ("READY", "HELD"): _Way("M440 652 V434", 448, 520, "start"),
    ("LEASED", "HELD"): _Way("M900 652 C860 480 720 396 536 396", 828, 540, "end"),
    ("DEAD", "HELD"): _Way(
        "M1450 708 V930 Q1450 940 1440 940 H350 Q340 940 340 930 V420 Q340 410 350 410 H384",
        760,
        956,
    ),
    ("READY", "LEASED"): _Way("M530 672 H864", 760, 662),
    ("LEASED", "READY"): _Way("M870 690 H536", 760, 710),
    ("LEASED", "DELAYED"): _Way("M930 652 C900 300 760 150 536 150", 850, 256, "start"),
    ("LEASED", "LEASED"): _Way("M960 652 C950 600 1030 600 1000 646", 1020, 570, "start"),
    ("LEASED", "FAILED"): _Way("M1010 660 C1180 640 1150 170 1324 165", 1176, 300, "start"),
    ("LEASED", "DONE"): _Way("M1010 670 C1200 660 1180 404 1324 400", 1240, 560, "start"),
    ("LEASED", "DEAD"): _Way("M1010 686 H1324", 1180, 706),
    ("not ended", "FAILED"): _Way("M1050 138 H1324", 1180, 128),
    ("waiting", "FAILED"): _Way("M650 90 H1390 Q1400 90 1400 100 V116", 850, 82),
    ("ready or held", "DEAD"): _Way(
        "M520 708 V800 Q520 810 530 810 H1380 Q1390 810 1390 800 V714", 860, 804
    ),
    ("ready or delayed", "READY"): _Way("M500 652 C494 612 546 612 524 646", 546, 634, "start"),
    ("ready or delayed", "DELAYED"): _Way("M480 122 C474 92 526 92 512 117", 526, 108, "start"),
    ("READY", "READY"): _Way("M400 660 C360 640 360 720 396 700", 366, 740, "start"),
    ("DELAYED", "DELAYED"): _Way("M400 130 C360 110 360 190 396 170", 366, 210, "start"),
    ("waiting", "DEAD"): _Way(
        "M490 760 V830 Q490 840 500 840 H1400 Q1410 840 1410 830 V714", 860, 834
    ),
    ("DEAD", "READY"): _Way(
        "M1430 708 V870 Q1430 880 1420 880 H430 Q420 880 420 870 V714", 860, 896
    ),
    ("FAILED", "FAILED"): _Way("M1450 178 C1450 200 1410 200 1410 184", 1494, 214, "end"),
    ("DONE", "DONE"): _Way("M1450 428 C1450 450 1410 450 1410 434", 1494, 464, "end"),
    ("DEAD", "DEAD"): _Way("M1470 668 C1500 658 1500 702 1476 692", 1508, 684, "start"),
    ("ended", _END): _Way("M1500 400 H1664", 1582, 370),
}
_DOTS = ((58, 150), (58, 400), (58, 680))  # The start of every task.
_DOT_END = (1676, 400)


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
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1710 1010" role="img" \
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
<rect width="1710" height="1010" rx="12" fill="#fff"/>"""


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
