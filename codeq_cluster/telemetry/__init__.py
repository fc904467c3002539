"""Metrics, logs and traces for an operator."""

from codeq_cluster.telemetry.logs import set_up_logs
from codeq_cluster.telemetry.metrics import Metrics, ScrapedMetric

__all__ = ["Metrics", "ScrapedMetric", "set_up_logs"]
