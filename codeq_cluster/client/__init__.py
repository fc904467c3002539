"""Client: the broker from outside, over HTTP; imports no server code."""

from codeq_cluster.client.broker import Broker, Refused, Unreachable

__all__ = ["Broker", "Refused", "Unreachable"]
