"""Loop metrics: counters and histograms of the event loop's thread, made metrics at the scrape.

Counting an event takes half a microsecond. The library's own children take four times that for
their locks and labels, and an operation counts a dozen events on three nodes.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Label = str | int


class _Count:
    """The count of one set of labels."""

    __slots__ = ("created_s", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created_s = time.time()


class LoopCounter(Collector):
    """A counter.

    Args:
        name: Without its `_total`.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._counts: dict[tuple[Label, ...], _Count] = {}

    def inc(self, *labels: Label, by: float = 1) -> None:
        """Count `by` events, not negative; 0 makes the counter appear."""
        count = self._counts.get(labels)
        if count is None:
            count = self._counts[labels] = _Count()
        count.value += by

    def describe(self) -> Iterator[Metric]:
        """Yield the metric without its samples."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        family = self._family()
        for labels, count in self._counts.items():
            family.add_metric([str(each) for each in labels], count.value, count.created_s)
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._text, labels=self._labels)


class _Observed:
    """Values of one set of labels."""

    __slots__ = ("counts", "created_s", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0
        self.created_s = time.time()


class LoopHistogram(Collector):
    """A histogram.

    Args:
        name: Complete.
        bounds: Upper bounds of the buckets, ascending; one without a bound follows them.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._bounds = tuple(bounds)
        self._ends = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        self._observed: dict[tuple[Label, ...], _Observed] = {}

    def observe(self, value: float, *labels: Label) -> None:
        """Count a value."""
        observed = self._observed.get(labels)
        if observed is None:
            observed = self.begin(*labels)
        observed.counts[bisect_left(self._bounds, value)] += 1
        observed.total += value

    def begin(self, *labels: Label) -> _Observed:
        """Make the histogram appear before its first value."""
        return self._observed.setdefault(labels, _Observed(len(self._ends)))

    def describe(self) -> Iterator[Metric]:
        """Yield the metric without its samples."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """Yield the metric; each bucket includes the counts of the smaller ones."""
        family = self._family()
        for key, observed in self._observed.items():
            labels = [str(each) for each in key]
            buckets = list(zip(self._ends, accumulate(observed.counts), strict=True))
            family.add_metric(labels, buckets, observed.total)
            named = dict(zip(self._labels, labels, strict=True))
            family.add_sample(f"{self._name}_created", named, observed.created_s)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._labels)
