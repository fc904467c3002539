"""Peers: a run becomes a table between two markers, and a drawing."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from bench.peers.failover import Failover
from bench.peers.plot import Scale, plot
from bench.peers.report import Report, Round, Spread, System, spread
from bench.peers.syncs import calls
from bench.peers.table import BEGIN, END, placed, table
from tests.unit.bench.samples import sample

_SVG = "{http://www.w3.org/2000/svg}"


def _system(name: str, rates: tuple[float, ...], *, missing: int = 0) -> System:
    rounds = [
        Round(
            first_create_s=1.0,
            rss_idle_mib=80.0,
            rss_loaded_mib=120.0,
            samples={
                f"cycle@{lanes}": sample(per_s=rate * lanes, cpu_ms=1.5, generator_ms=0.25)
                for lanes in (1, 32)
            },
            failover=Failover(worst_s=rate / 100, created=800, missing=missing, twice=0),
        )
        for rate in rates
    ]
    return System(name=name, syncs="nothing", batch=10, syncs_a_cycle=9.0, rounds=rounds)


def _report(*systems: System) -> Report:
    machine = {
        "commit": "0123456789abcdef",
        "changed": False,
        "cores": 2,
        "cpu": "x",
        "kernel": "6",
        "fsyncMs": 0.1,
    }
    return Report(machine=machine, command="make", when="2026-01-01", systems=list(systems))


def _cells(text: str, row: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_a_figure_is_the_median_of_its_rounds_with_their_spread() -> None:
    """One slow round of three changes the spread and not the median."""
    text = table(_report(_system("ours", (30, 10, 31)), _system("theirs", (50, 50, 50))))

    assert ["960 (320 to 992)", "1,600"] == _cells(text, "cycles/s, 32 in flight")
    assert ["1.50 / 0.25 ms"] * 2 == _cells(text, "CPU a cycle at 32, servers / client")
    assert "commit `0123456789`;" in text


def test_an_unmeasured_load_is_an_empty_cell() -> None:
    """A load left out with `--only` is not shown as zero."""
    text = table(_report(_system("ours", (30,))))

    assert [""] == _cells(text, "cycles/s, 8 in flight")
    assert spread(_system("ours", (30,)), "cycle@8", lambda one: one.per_s) is None


def test_tasks_that_nobody_was_given_are_summed_over_the_kills() -> None:
    """A loss in one round of three stays in the table."""
    text = table(_report(_system("ours", (30, 30), missing=0), _system("lossy", (9, 9), missing=3)))

    row = "acknowledged but not handed out / handed out twice, over that"
    assert ["0 / 0 of 1,600", "6 / 0 of 1,600"] == _cells(text, row)


def test_the_table_replaces_what_is_between_the_markers() -> None:
    """A second write replaces the first, and the text around the markers stays."""
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"

    once = placed(document, "new")

    assert f"before\n{BEGIN}\nnew\n{END}\nafter\n" == once
    assert once == placed(once, "new")


@pytest.mark.parametrize("document", ["", f"{BEGIN}\n", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n"])
def test_a_document_without_one_pair_of_markers_is_refused(document: str) -> None:
    """Nothing is written into a document that has no place for it."""
    with pytest.raises(ValueError, match="exactly one line"):
        placed(document, "new")


def test_the_drawing_has_a_point_for_each_figure() -> None:
    """More cycles are further up, more lanes further right, and the text is well-formed XML."""
    drawn = ET.fromstring(plot(_report(_system("a<b", (30, 10)), _system("b", (90, 90)))))

    points = [
        (float(circle.get("cx", "")), float(circle.get("cy", "")), title.text or "")
        for circle in drawn.iter(f"{_SVG}circle")
        for title in circle.iter(f"{_SVG}title")
    ]
    (x1, y1, told), (x2, y2, _), (_, y3, _), _ = points
    assert 4 == len(points)
    assert "a<b: 20 cycles/s" == told
    assert x1 < x2
    assert y3 < y1
    assert y2 < y1


def test_a_report_without_cycles_is_drawn_without_points() -> None:
    """A run of other loads is drawn with the systems' names and without lines."""
    bare = System(name="ours", syncs="", batch=1)

    drawn = ET.fromstring(plot(_report(bare)))

    assert not list(drawn.iter(f"{_SVG}polyline"))
    assert "ours" in [text.text for text in drawn.iter(f"{_SVG}text")]


def test_a_scale_maps_equal_ratios_to_equal_distances() -> None:
    """Ten to a hundred is as far as a hundred to a thousand."""
    scale = Scale(10, 1000, 0, 200)

    assert pytest.approx([0, 100, 200]) == [scale.at(value) for value in (10, 100, 1000)]


def test_a_spread_is_median_least_and_most() -> None:
    """With an even number of values, the median is between the middle two."""
    assert Spread(2.5, 1.0, 4.0) == Spread.of([4.0, 1.0, 2.0, 3.0])


def test_syncs_are_summed_over_the_calls_that_sync() -> None:
    """Head, rule and total of strace's table do not count as calls."""
    told = "   calls syscall\n-------- -------\n   12 fdatasync\n    3 fsync\n   15 total\n"

    assert 15 == calls(told)
