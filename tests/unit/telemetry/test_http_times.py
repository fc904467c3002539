"""HTTP times: counted without the library, shown as the library's histogram shows them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from codeq_cluster.telemetry.http_times import HttpTimes

_BOUNDS_S = (0.001, 0.25, 1, 30)
_seconds = st.one_of(st.sampled_from([0.0, *_BOUNDS_S]), st.floats(0, 100))
_requests = st.lists(st.tuples(st.sampled_from(["/a", "/b/{id}"]), st.integers(200, 202), _seconds))


def _text(registry: CollectorRegistry) -> list[str]:
    """Return the scrape; when a series was begun is the clock's."""
    lines = generate_latest(registry).decode().splitlines()
    return [line.rpartition(" ")[0] if "_created{" in line else line for line in lines]


@given(requests=_requests)
def test_a_scrape_is_that_of_the_librarys_histogram(requests: list[tuple[str, int, float]]) -> None:
    """Bounds belong to the bucket below them; sums, order and names are the same."""
    expected, registry = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram(
        "codeq_http_request_seconds",
        "From a request's head to its answer, waits included.",
        ("route", "method", "status"),
        buckets=_BOUNDS_S,
        registry=expected,
    )
    times = HttpTimes(_BOUNDS_S)
    registry.register(times)
    for route, status, seconds in requests:
        histogram.labels(route, "POST", str(status)).observe(seconds)
        times.observe(route, "POST", status, seconds)

    assert _text(registry) == _text(expected)
