"""Client: the broker from outside, over HTTP; imports no server code.

`Broker` for producers, `Worker` for workers, `Operator` for admins of a tenant and operators of the
cluster; `Leases` is what `Worker` is made of, for a loop of one's own.
"""

from codeq_cluster.client.broker import Broker
from codeq_cluster.client.handling import (
    Ended,
    Ending,
    Handler,
    HandlerUnfit,
    JsonText,
    TaskFailed,
    TaskReturned,
)
from codeq_cluster.client.leases import Leases, Task
from codeq_cluster.client.operator import Operator, Page, Selection
from codeq_cluster.client.refusals import Refused, Unreachable, Untrusted
from codeq_cluster.client.worker import Worker

__all__ = [
    "Broker",
    "Ended",
    "Ending",
    "Handler",
    "HandlerUnfit",
    "JsonText",
    "Leases",
    "Operator",
    "Page",
    "Refused",
    "Selection",
    "Task",
    "TaskFailed",
    "TaskReturned",
    "Unreachable",
    "Untrusted",
    "Worker",
]
