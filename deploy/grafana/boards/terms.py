"""Terms: PromQL expressions that several panels share."""

from __future__ import annotations

STEP = "$__rate_interval"


def of(metric: str, **labels: str) -> str:
    """Return the series of a metric in the chosen cluster; values of labels are patterns."""
    matchers = ['job="$job"', *(f'{name}=~"{value}"' for name, value in labels.items())]
    return f"{metric}{{{', '.join(matchers)}}}"


def rate(metric: str, by: str = "", **labels: str) -> str:
    """Return a counter's growth per second, summed by labels."""
    return total(f"rate({of(metric, **labels)}[{STEP}])", by)


def growth(metric: str, by: str = "", **labels: str) -> str:
    """Return a counter's growth since the previous point, summed by labels."""
    return total(f"increase({of(metric, **labels)}[{STEP}])", by)


def total(expression: str, by: str = "") -> str:
    """Return a sum by labels, or over all series."""
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"


def most(expression: str, by: str) -> str:
    """Return the largest value by labels."""
    return f"max by ({by}) ({expression})"


def or_nothing(expression: str) -> str:
    """Return a sum by node, with 0 for nodes without a series."""
    return f"{expression} or 0 * {total(of('up'), 'instance')}"


def quantile(share: float, metric: str, by: str = "", **labels: str) -> str:
    """Return a quantile of a histogram, by labels."""
    keep = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', keep, **labels)})"


def mean(metric: str, by: str = "", **labels: str) -> str:
    """Return the mean of a histogram's recent observations, by labels."""
    observed = rate(f"{metric}_sum", by, **labels)
    return f"{observed} / {rate(f'{metric}_count', by, **labels)}"
