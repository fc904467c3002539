"""Task ids: the beginning of an id, as the page shows it, names its task."""

from __future__ import annotations

import re

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
