"""Made tasks: what a relay has made of an outbox's rows."""

from __future__ import annotations

from codeq_cluster.client import TaskRecord
from codeq_cluster.testing.broker import LocalBroker


def tasks_of(broker: LocalBroker, command: str) -> list[TaskRecord]:
    """Return the tasks of a queue."""
    with broker.sync_operator() as operator, broker.sync_client() as client:
        rows, cursor = [], ""
        while True:
            page = operator.tasks(command=command, cursor=cursor)
            rows += page.rows
            cursor = page.cursor
            if not cursor:
                break
        return [client.task(row["id"]) for row in rows]


def numbers(broker: LocalBroker, command: str) -> list[int]:
    """Return the payloads of a queue's tasks, sorted."""
    return sorted(int(each.payload) for each in tasks_of(broker, command))
