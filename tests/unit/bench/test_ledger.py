"""Ledger: layers are differences of rows, shown beside budgets and an earlier run."""

from __future__ import annotations

import re

import pytest

from bench.ledger import ROWS, Figures, Ledger, Row, figures, render
from tests.unit.bench.samples import sample

_MACHINE = {"cores": 2, "cpu": "x", "kernel": "6", "fsyncMs": 0.1, "loadBefore": 0.0}


def _row(name: str, **less: float) -> Row:
    return Row(name=name, says="", cluster="1x1", less=less)


def _ledger(rows: dict[str, Figures], **machine: object) -> Ledger:
    return Ledger(machine={**_MACHINE, **machine}, commit="c", command="", rows=rows)


def _figures(*, layer_ms: float, failed: dict[str, int] | None = None) -> Figures:
    return Figures(
        per_s=1.0,
        cpu_ms=layer_ms,
        layer_ms=layer_ms,
        p50_ms=1.0,
        p99_ms=1.0,
        generator_ms=0.1,
        foreign_cores=0.0,
        failed=failed or {},
    )


def test_a_layers_cost_is_the_excess_of_its_row_over_those_below() -> None:
    """Medians of the rounds are subtracted with their shares."""
    rows = [_row("leader"), _row("followers"), _row("shards", leader=1 / 3, followers=2 / 3)]
    rounds = {
        "leader": [sample(cpu_ms=ms) for ms in (0.3, 0.6, 9.0)],
        "followers": [sample(cpu_ms=ms) for ms in (0.9, 0.9, 0.9)],
        "shards": [sample(cpu_ms=ms) for ms in (1.5, 1.5, 0.1)],
    }

    found = figures(rows, rounds, {row.name: [{}, {}, {}] for row in rows})

    assert pytest.approx(0.6) == found["leader"].layer_ms
    assert pytest.approx(1.5 - 0.2 - 0.6) == found["shards"].layer_ms


def test_a_layer_whose_base_was_not_measured_has_no_cost() -> None:
    """With `--only` a row may lack the rows below it."""
    found = figures([_row("leader", other=1)], {"leader": [sample()]}, {"leader": [{}]})

    assert found["leader"].layer_ms is None


def test_counts_are_medians_of_the_rounds() -> None:
    """The median of an event that happened in one round of three is 0."""
    counts = {"leader": [{"fsync": 3.0}, {"fsync": 5.0, "frames": 1.0}, {"fsync": 4.0}]}

    found = figures([_row("leader")], {"leader": [sample()] * 3}, counts)

    assert {"fsync": 4.0, "frames": 0.0} == found["leader"].counts


def test_a_row_is_shown_beside_its_budget_and_the_run_before() -> None:
    """One line has the cost, the budget and the earlier cost."""
    now, before = _ledger({"leader": _figures(layer_ms=0.161)}), {"leader": _figures(layer_ms=0.32)}

    (line,) = (x for x in render(now, _ledger(before)).splitlines() if x.startswith("leader"))

    columns = re.findall(r"\d\.\d{3}", line)
    assert ["0.161", "0.080", "0.320", "0.161", "0.320"] == columns[:5]


def test_a_run_of_another_machine_is_marked() -> None:
    """Columns of different machines come with a warning."""
    ledger = _ledger({"leader": _figures(layer_ms=0.1)})

    assert "ANOTHER MACHINE" in render(ledger, _ledger({}, cpu="y"))
    assert "ANOTHER MACHINE" not in render(ledger, _ledger({}))


def test_failed_requests_are_shown() -> None:
    """A row whose requests failed says so in its line."""
    ledger = _ledger({"leader": _figures(layer_ms=0.1, failed={"create 500": 3})})

    assert "FAILED {'create 500': 3}" in render(ledger, None)


def test_every_row_builds_on_rows_that_exist() -> None:
    """No layer is the difference to a row that does not exist."""
    names = {row.name for row in ROWS}

    assert all(row.less.keys() <= names for row in ROWS)
