"""New task: everything that its producer may say of it."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.core.handling import Handling


class Create(Struct, frozen=True, array_like=True, tag="create", kw_only=True):
    """Add a task: everything that its producer may say of it.

    Attributes:
        id: Hashes to this shard; a second create with the same id is a retry. It, the tenant and
            the fingerprint are empty until the broker has placed the task.
        payload: JSON text, kept byte for byte.
        max_attempts: 0 for the default of the queue's topic or the broker.
        run_at_ms: The earliest start; 0 if none is asked for.
        delay_ms: From the leader's clock; 0 for at once. Ignored when `run_at_ms` is set.
        ttl_ms: A waiting task becomes a dead letter after this time; 0 for never.
        fingerprint: Hash of command and payload; tells a repeated create from a conflicting one.
        handling: Its time limit and back-off, if it says any.
    """

    id: str = ""
    tenant: str = ""
    command: str
    payload: str
    priority: int = 0
    max_attempts: int = 0
    webhook: str = ""
    idempotency_key: str = ""
    fingerprint: str = ""
    run_at_ms: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    trace_parent: str = ""
    trace_state: str = ""
    handling: Handling | None = None
