"""Bench load: which failures count, and which end the load."""

from __future__ import annotations

from array import array

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.cli.work.bench import _quantiles
from codeq_cluster.cli.work.bench_load import BenchLoad, Figures
from codeq_cluster.client import Refused
from codeq_cluster.errors import CodeqError


def test_a_refused_token_ends_it_at_once() -> None:
    """The rate of refusals would mean nothing."""
    with pytest.raises(Refused, match="invalid token"):
        Figures().failed(Refused("invalid token", status=401))


def test_a_failure_among_successes_is_counted() -> None:
    """The first failure is shown."""
    figures = Figures(created=10)
    figures.failed(Refused("overloaded", status=503))
    figures.failed("no leader")

    assert (2, "overloaded") == (figures.failures, figures.first_failure)


def test_a_cluster_that_does_nearly_nothing_is_given_up() -> None:
    """The error has the reason."""
    figures = Figures()
    for _ in range(99):
        figures.failed("overloaded")

    with pytest.raises(CodeqError, match="100 requests failed, the first: overloaded"):
        figures.failed("no leader")


def test_quantiles_are_in_milliseconds() -> None:
    """A thousand times, one for each millisecond, have known quantiles."""
    times = array("d", [n / 1000 for n in range(1, 1001)])

    assert pytest.approx({"p50": 500, "p95": 950, "p99": 990, "max": 1000}, 0.01) == _quantiles(
        times
    )
    assert {0.0} == set(_quantiles(array("d")).values())


def test_a_payload_has_the_size_that_was_asked_for() -> None:
    """The size counts the JSON text."""
    load = BenchLoad(queue="e", seconds=1, in_flight=1, batch=1, payload_bytes=128)

    assert 128 == len(f'"{load.payload}"')


@pytest.mark.parametrize(
    "flags",
    [("--seconds", "0"), ("--in-flight", "257"), ("--batch", "101"), ("--payload-bytes", "1")],
)
def test_what_is_out_of_bounds_is_a_wrong_use(
    flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is sent."""
    assert 2 == main(["bench", *flags, "--url", "http://127.0.0.1:9"])
    assert f"{flags[0]} {flags[1]}: must be" in capsys.readouterr().err
