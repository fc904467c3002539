"""Dramatiq on this broker: `dramatiq.set_broker(CodeqBroker("codeq://TOKEN@n1:8080,n2:8080"))`."""

from codeq_cluster.integrations.dramatiq.broker import CodeqBroker
from codeq_cluster.integrations.dramatiq.results import CodeqBackend

__all__ = ["CodeqBackend", "CodeqBroker"]
