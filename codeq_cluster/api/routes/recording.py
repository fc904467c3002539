"""Recording: audit records of changes that have no log entry."""

from __future__ import annotations

from codeq_cluster.api.http.call import Call
from codeq_cluster.errors import CodeqError, OutcomeUnknown


async def put_on_record(call: Call, action: str, target: str, *, detail: str = "") -> None:
    """Record a change that has been made, with the caller as its author.

    Raises:
        OutcomeUnknown: The change was made but may not be recorded.
    """
    try:
        await call.services.broker.queue_policies.record(
            call.identity.tenant,
            by=call.identity.subject,
            action=action,
            target=target,
            detail=detail,
            timeout_s=call.timeout_s,
        )
    except CodeqError as error:
        raise OutcomeUnknown("it is done, and perhaps not on record") from error
