"""Faults: which failures are those of one thing, and how the others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.records import RecordInvalid
from codeq_cluster.core.items import TASK, SetAside
from codeq_cluster.core.operations import Claim
from codeq_cluster.core.view import View
from codeq_cluster.errors import CodeqError, OperationTooLarge

log = logging.getLogger(__name__)

LOOKED_AT_MAX = 1000  # Ready tasks read after a claim has failed: about 15 ms.


@contextmanager
def alone(failed: Callable[[], None], **about: object) -> Iterator[None]:
    """Leave the block if it fails at one thing, so that a loop goes on with the next one.

    Args:
        failed: Called then; counts it.
        about: Names the thing in the log.
    """
    try:
        yield
    except Exception:
        log.exception("left out", extra=about)
        failed()


def is_fault(error: BaseException) -> bool:
    """Return whether a failure is that of the thing it was met at, or of our code for it.

    Other failures, of the disk or of the leadership, would be met at every thing: for these,
    nothing may be set aside.
    """
    if isinstance(error, RecordInvalid | OperationTooLarge):
        return True
    return not isinstance(error, CodeqError | OSError | MemoryError)


def unreadable(view: View, claim: Claim) -> list[SetAside]:
    """Return the operations that set aside what a claim could not read, first of all it looks at.

    A claim that fails costs its tenant's queues alone, so this looks only after a failure.
    """
    found: list[SetAside] = []
    queues = dict.fromkeys(map(keyspace.queue_name, claim.commands)) or view.queues(claim.tenant)
    ready = ((queue, row) for queue in queues for row in view.ready(claim.tenant, queue))
    for queue, (priority, seq, task_id) in islice(ready, LOOKED_AT_MAX):
        try:
            assert view.task(task_id) is not None, "a task is in its queue and not there"
        except (AssertionError, RecordInvalid) as error:
            place = keyspace.pending(
                queue, claim.tenant, priority=priority, seq=seq, task_id=task_id
            )
            found.append(setting_aside(place, error, tenant=claim.tenant))
    return found


def setting_aside(timer: bytes, error: BaseException, *, tenant: str) -> SetAside:
    """Return the operation that sets aside the thing to which a row of an index leads.

    Args:
        timer: The row's key: a timer, an outbox job, or the place of a ready task.
        error: The failure.
        tenant: The owner of a task; the keys of items name theirs.
    """
    if keyspace.is_task_index(timer):
        kind, subject = TASK, keyspace.last_id(timer)
    else:
        item_kind, tenant, subject = keyspace.item_parts(timer)
        kind = item_kind.value
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")
    return SetAside(tenant=tenant, kind=kind, subject=subject, timer=timer, reason=reason)
