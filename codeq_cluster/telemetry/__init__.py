"""What an operator sees: metrics and logs."""

from codeq_cluster.telemetry.logs import set_up_logs
from codeq_cluster.telemetry.metrics import Level, Metrics

__all__ = ["Level", "Metrics", "set_up_logs"]
