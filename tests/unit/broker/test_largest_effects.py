"""Effects: with every bound at its most, what an operation on one task writes fits any entry."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.broker.engine.batch import weigh
from codeq_cluster.broker.engine.leadership import ENTRY_OVERHEAD_BYTES
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core import bounds
from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.faults import item_fault, task_fault
from codeq_cluster.core.handling import Handling
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import Delivery, Topic
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Heartbeat,
    Operation,
    Purge,
    Requeue,
    Revise,
    Staging,
    Submit,
    Undelivered,
    UndoRequeue,
)
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import (
    HISTORY_ATTEMPTS_MAX,
    UPLOADS_MAX,
    Attempt,
    AttemptOutcome,
    Counters,
    Result,
    State,
    Task,
)
from tests.fakes.dict_view import DictView

NOW_MS = bounds.NUMBER_MAX - 2**40
TENANT, ID, COMMAND, REQUEST = "t" * 63, "i" * 128, "c" * 128, "r" * 128
SUBJECT = "w" * bounds.SUBJECT_BYTES_MAX
REASON = "\U0001f4a9" * bounds.REASON_CHARS_MAX
URL = "https://" + "\U0001f4a9" * (bounds.URL_CHARS_MAX - 8)
TRACE = {"trace_parent": f"00-{'1' * 32}-{'1' * 16}-01", "trace_state": "s" * 512}
HANDLING = Handling(
    timeout_ms=2**34, backoff="exp_equal_jitter", backoff_base_ms=2**34, backoff_max_ms=2**34
)
RULES = LifetimeRules(delivery_attempts_max=100)
UPLOADS = tuple(f"{number:040x}" for number in range(UPLOADS_MAX))


def largest(state: State, **fields: object) -> Task:
    """Return a task in a state, each of whose texts and lists is as long as it may be."""
    attempt = Attempt(
        worker=SUBJECT,
        started_ms=NOW_MS,
        ended_ms=NOW_MS,
        outcome=AttemptOutcome.REQUEUED,
        error=REASON,
        request=REQUEST,
        delay_ms=NOW_MS,
        worker_name="n" * 128,
    )
    task = Task(
        id=ID,
        tenant=TENANT,
        command=COMMAND,
        priority=9,
        max_attempts=bounds.ATTEMPTS_MAX,
        created_ms=NOW_MS,
        updated_ms=NOW_MS,
        state=state,
        webhook=URL,
        idempotency_key="k" * bounds.KEY_BYTES_MAX,
        history=(attempt,) * HISTORY_ATTEMPTS_MAX,
        payload_bytes=NOW_MS,
        uploads=UPLOADS,
        upload_bytes=(NOW_MS,) * len(UPLOADS),
        endings=NOW_MS,
        lease_token=NOW_MS,
        handling=HANDLING,
        **TRACE,
    )
    own: dict[str, object] = {"retain_until_ms": NOW_MS, "has_result": True}
    match state:
        case State.READY:
            own = {"seq": 2**60, "expires_ms": NOW_MS}
        case State.DELAYED:
            own = {"due_ms": NOW_MS, "expires_ms": NOW_MS}
        case State.LEASED:
            own = {
                "worker": SUBJECT,
                "claim": REQUEST,
                "worker_name": "n" * 128,
                "lease_until_ms": NOW_MS,
                "claimed_ms": NOW_MS,
                "attempts": bounds.ATTEMPTS_MAX,
            }
        case State.DEAD:
            own |= {"dead_queue": "d" * 63}
        case _:
            pass
    made = replace(task, **own | fields)
    assert not task_fault(made)
    return made


def on(kind: type[Operation], **fields: object) -> Operation:
    """Return an operation on the task."""
    names = {"id": ID, "ids": (ID,), "tenant": TENANT, "worker": SUBJECT, "by": SUBJECT}
    names |= {"request": "another"}
    known = {name: value for name, value in names.items() if name in kind.__struct_fields__}
    return kind(**known | fields)


# Each of a queue's counters, so that one less is none below 0.
_MANY = Counters(*(2**60,) * 7)
_COUNTERS = {(queue, TENANT): _MANY for queue in (COMMAND.lower(), "d" * 63)}

ERROR = "e" * bounds.REASON_CHARS_MAX


@pytest.mark.parametrize(
    ("state", "operation"),
    [
        (State.READY, Advance(count=1)),
        (State.DELAYED, Advance(count=1)),
        (State.LEASED, Advance(count=1)),
        (State.DONE, Advance(count=1)),
        (State.DEAD, Advance(count=1)),
        (State.LEASED, on(Nack, reason=REASON)),
        (State.LEASED, on(Abandon)),
        (State.LEASED, on(Heartbeat, extend_ms=1)),
        (State.LEASED, on(Submit, status="FAILED", error=ERROR)),
        *((state, on(Cancel)) for state in (State.READY, State.DELAYED, State.LEASED)),
        (State.READY, on(Purge, queue=COMMAND)),
        (State.READY, on(UndoRequeue, requeue=REQUEST)),
        (State.FAILED, on(Delete)),
        (State.DEAD, on(Delete, dead_only=True)),
        (State.DEAD, on(Requeue)),
        (State.DEAD, on(Revise, payload="{}", endings=NOW_MS)),
        (State.READY, on(Claim, commands=(), count=1, lease_ms=1)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Operation) else value.name,
)
def test_every_operation_on_one_task_fits_the_smallest_entry(
    state: State, operation: Operation
) -> None:
    """Timers and bulk actions go down to one task, so none of them can fail for its size."""
    expires_ms = 0 if isinstance(operation, Claim) else NOW_MS
    task = largest(state, expires_ms=expires_ms)
    # A dead letter comes back only before its time ends.
    view = DictView(now_ms=NOW_MS - isinstance(operation, Requeue | Revise))
    topic = Topic(tenant=TENANT, id=COMMAND, name=COMMAND, dead_letter="d" * 63)
    assert not item_fault(topic)
    view.items[ItemKind.TOPIC, TENANT, COMMAND] = topic
    result = Result(task_id=ID, status="FAILED") if state.terminal else None
    view.advance([TaskChange(before=None, after=task, payload="{}", result=result)])
    changes = decide(view, operation, RULES).changes
    rows = mutations(changes, _COUNTERS)

    assert changes
    assert weigh(rows) <= bounds.EFFECTS_BYTES_MAX - ENTRY_OVERHEAD_BYTES


def test_a_stage_and_a_failed_callback_fit_the_smallest_entry() -> None:
    """They are the operations that rewrite a record without ending its task."""
    view = DictView(now_ms=NOW_MS)
    task = largest(State.LEASED, uploads=UPLOADS[1:], upload_bytes=(NOW_MS,) * (len(UPLOADS) - 1))
    view.advance([TaskChange(before=None, after=task, payload="{}")])
    staged = decide(view, on(Staging, upload=UPLOADS[0]), RULES).changes
    delivery = Delivery(
        tenant=TENANT,
        id=f"{ID}.{'9' * 15}",
        task_id=ID,
        command=COMMAND,
        url=URL,
        created_ms=NOW_MS,
        due_ms=NOW_MS,
        since_ms=NOW_MS,
        error=REASON,
        replay=REQUEST,
        **TRACE,
    )
    assert not item_fault(delivery)
    view.items[ItemKind.DELIVERY, TENANT, delivery.id] = delivery
    undelivered = Undelivered(tenant=TENANT, id=delivery.id, attempt=1, error=REASON)
    failed = decide(view, undelivered, RULES).changes

    for changes in (staged, failed):
        rows = mutations(changes, _COUNTERS)
        assert 0 < weigh(rows) <= bounds.EFFECTS_BYTES_MAX - ENTRY_OVERHEAD_BYTES
