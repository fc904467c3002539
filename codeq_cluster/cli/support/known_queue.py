"""Known queue: the refusal of a queue's name that the tenant does not have."""

from __future__ import annotations

from difflib import get_close_matches

from codeq_cluster.client import Operator, Refused


async def refuse_unknown(operator: Operator, queue: str, *, advice: str = "") -> None:
    """Refuse a queue that the tenant does not have, and name the nearest one that it has.

    A misspelt name would otherwise look like an empty queue.

    Raises:
        Refused: It has no tasks, no topic and is not paused.
    """
    known = {str(row.get("command")).lower() for row in await operator.queues()}
    if queue.lower() in known:
        return
    try:
        await operator.topic(queue)
    except Refused as refused:
        if refused.status not in (400, 404):
            raise
    else:
        return
    near = get_close_matches(queue.lower(), known, n=1)
    meant = f"; did you mean {near[0]}?" if near else "; queue ls lists the queues"
    raise Refused(f"there is no queue {queue}{meant}{advice}", status=404, code="no-such-queue")
