"""Loop metrics: counted without the library, and scraped like the library's own metrics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from codeq_cluster.telemetry.loop_metrics import LoopCounter, LoopHistogram

_BOUNDS_S = (0.001, 0.25, 1, 30)
_LABELS = ("route", "status")
_labels = st.tuples(st.sampled_from(["/a", "/b/{id}"]), st.integers(200, 202))
_seconds = st.one_of(st.sampled_from([0.0, *_BOUNDS_S]), st.floats(0, 100))


def _text(registry: CollectorRegistry) -> list[str]:
    """Return the scrape without the creation times of series."""
    lines = generate_latest(registry).decode().splitlines()
    return [line.rpartition(" ")[0] if "_created{" in line else line for line in lines]


@given(values=st.lists(st.tuples(_labels, _seconds)))
def test_a_histogram_is_scraped_as_the_librarys(
    values: list[tuple[tuple[str, int], float]],
) -> None:
    """A bound belongs to the bucket below it; sums, order and names are the same."""
    expected, registry = CollectorRegistry(), CollectorRegistry()
    theirs = Histogram("codeq_seconds", "Help.", _LABELS, buckets=_BOUNDS_S, registry=expected)
    ours = LoopHistogram("codeq_seconds", "Help.", _LABELS, _BOUNDS_S)
    registry.register(ours)
    for (route, status), seconds in values:
        theirs.labels(route, str(status)).observe(seconds)
        ours.observe(seconds, route, status)

    assert _text(registry) == _text(expected)


@given(values=st.lists(st.tuples(_labels, st.integers(0, 100))))
def test_a_counter_is_scraped_as_the_librarys(values: list[tuple[tuple[str, int], int]]) -> None:
    """A counter without events is there, too."""
    expected, registry = CollectorRegistry(), CollectorRegistry()
    theirs = Counter("codeq_events", "Help.", _LABELS, registry=expected)
    ours = LoopCounter("codeq_events", "Help.", _LABELS)
    registry.register(ours)
    for (route, status), events in values:
        theirs.labels(route, str(status)).inc(events)
        ours.inc(route, status, by=events)

    assert _text(registry) == _text(expected)


def test_a_histogram_that_was_begun_is_scraped_before_its_first_value() -> None:
    """A rate over it includes the first one."""
    registry = CollectorRegistry()
    histogram = LoopHistogram("codeq_seconds", "Help.", ("shard",), _BOUNDS_S)
    registry.register(histogram)
    histogram.begin(3)
    histogram.begin(3)

    assert 'codeq_seconds_count{shard="3"} 0.0' in _text(registry)
