"""Named: the queue or the task that a user means, who may have typed a part or a misspelling."""

from __future__ import annotations

import re
from difflib import get_close_matches

from codeq_cluster.client import Client, Operator, Refused

# The beginning of an id as this broker draws them, as the page and logs show it.
_SHORT = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,27}…?")


async def whole_id(connection: Client | Operator, text: str) -> str:
    """Return a task's id; a part of it is enough where only one task begins so.

    Raises:
        Refused: Several tasks begin so.
    """
    if not _SHORT.fullmatch(text):
        return text
    text = text.rstrip("…")
    ids = await connection.ids(text)
    if len(ids) > 1:
        raise Refused(f"several ids begin with {text}: {', '.join(ids)}", status=404)
    return ids[0] if ids else text


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
        if refused.status not in (400, 404, 422):
            raise
    else:
        return
    near = get_close_matches(queue.lower(), known, n=1)
    meant = f"; did you mean {near[0]}?" if near else "; queue ls lists the queues"
    raise Refused(f"there is no queue {queue}{meant}{advice}", status=404, code="no-such-queue")
