"""Taskiq on this broker: `broker = CodeqBroker("codeq://TOKEN@n1:8080,n2:8080")`."""

from codeq_cluster.integrations.taskiq.broadcasts import CodeqPubSubBroker
from codeq_cluster.integrations.taskiq.broker import CodeqBroker
from codeq_cluster.integrations.taskiq.results import CodeqResultBackend
from codeq_cluster.integrations.taskiq.schedules import CodeqScheduleSource

__all__ = ["CodeqBroker", "CodeqPubSubBroker", "CodeqResultBackend", "CodeqScheduleSource"]
