"""Grafana: the dashboards match their source, and query metrics that exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana.boards.catalogue import BOARDS, written
from deploy.grafana.boards.panels import Board

_ROOT = Path(__file__).resolve().parents[2]
_SHIPPED = _ROOT / "deploy" / "grafana"
_METRICS = re.findall(
    r"^\| `(codeq_\w+)` \|", (_ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE
)
# Prometheus's own metrics, and those of every process.
_OTHERS = {"up", "ALERTS", "process_cpu_seconds_total", "process_resident_memory_bytes"}

every_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)


def _panels(board: Board) -> list[Any]:
    return list(board.dashboard.build().panels or [])


def _expressions(board: Board) -> Iterator[str]:
    for panel in _panels(board):
        for target in getattr(panel, "targets", None) or []:
            yield target.expr


def test_every_dashboard_is_the_one_of_its_source() -> None:
    """`make dashboards` has been run since the last change, and no file is left over."""
    kept = {file.stem: file.read_text() for file in (_SHIPPED / "dashboards").glob("*.json")}

    assert kept == {board.name: written(board) for board in BOARDS}


@every_board
def test_a_dashboard_asks_for_metrics_that_exist(board: Board) -> None:
    """A misspelt metric would make an empty panel."""
    named = {
        name
        for expression in _expressions(board)
        for name in re.findall(r"(?<![\w$])(\w+)\{", expression)
    }
    known = {name for metric in _METRICS for name in (metric, *_parts(metric))} | _OTHERS

    assert named
    assert named <= known


def _parts(metric: str) -> list[str]:
    return [f"{metric}_{part}" for part in ("bucket", "count", "sum")]


@pytest.mark.needs("promtool")
@every_board
def test_prometheus_takes_every_expression(board: Board, tmp_path: Path) -> None:
    """Variables are substituted as Grafana does."""
    rules = tmp_path / "rules.yml"
    filled = [
        re.sub(r"\$\w+", ".+", expression.replace("$__rate_interval", "1m"))
        for expression in _expressions(board)
    ]
    group = {
        "name": "panels",
        "rules": [
            {"record": f"panel:{number}", "expr": each} for number, each in enumerate(filled)
        ],
    }
    rules.write_text(yaml.safe_dump({"groups": [group]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", rules],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert 0 == checked.returncode, checked.stdout + checked.stderr
    assert f"{len(filled)} rules found" in checked.stdout


@every_board
def test_a_dashboard_uses_the_choices_it_offers(board: Board) -> None:
    """Panels use exactly the offered choices, and all of them show one cluster."""
    offered = {each.name for each in board.dashboard.build().templating.list_val}
    expressions = list(_expressions(board))
    used = {name for each in expressions for name in re.findall(r"\$(\w+)", each)}

    assert offered - {"datasource"} == used - {"__rate_interval"}
    assert all('job="$job"' in each for each in expressions)


@every_board
def test_no_panel_hides_another(board: Board) -> None:
    """Each panel has its own place on the grid and its own number."""
    panels = _panels(board)
    places = [panel.grid_pos for panel in panels]
    hidden = [
        (one, other)
        for one, other in combinations(places, 2)
        if one.x < other.x + other.w
        and other.x < one.x + one.w
        and one.y < other.y + other.h
        and other.y < one.y + one.h
    ]

    assert len(panels) == len({panel.id_val for panel in panels})
    assert [] == hidden
    assert all(place.x + place.w <= 24 for place in places)
