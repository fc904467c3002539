"""Operations: what a caller can ask of one shard.

They travel between nodes as they are, so each is a tagged array; limits are checked before an
operation is made, the core asserts them. `request` is the id the first node gave the request: an
operation that is sent again under the same id takes effect once.
"""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.core.task import Artifact


class Create(Struct, frozen=True, array_like=True, tag="create", kw_only=True):
    """Add a task.

    Attributes:
        id: Drawn by the caller; hashes to this shard. A second create of one id is a retry.
        payload: JSON text, kept byte for byte.
        delay_ms: From the leader's clock; 0 for at once. Ignored when `run_at_ms` is set.
        ttl_ms: Undelivered after that it dies; 0 for never.
        fingerprint: Of command and payload, to tell a replay of the key from a conflict.
    """

    id: str
    tenant: str
    command: str
    payload: str
    priority: int = 0
    max_attempts: int = 5
    webhook: str = ""
    idempotency_key: str = ""
    fingerprint: str = ""
    run_at_ms: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    trace_parent: str = ""
    trace_state: str = ""


class Claim(Struct, frozen=True, array_like=True, tag="claim", kw_only=True):
    """Lease up to `count` ready tasks of the tenant to a worker.

    Attributes:
        commands: In order of preference among equal priorities; empty for every command.
        retry: The request was sent before; look first for what it already leased.
    """

    request: str
    tenant: str
    worker: str
    commands: tuple[str, ...]
    count: int
    lease_ms: int
    retry: bool = False


class Heartbeat(Struct, frozen=True, array_like=True, tag="heartbeat", kw_only=True):
    """Extend a lease to now + `extend_ms`. `token` 0: ownership is decided by worker alone."""

    id: str
    tenant: str
    worker: str
    extend_ms: int
    token: int = 0


class Abandon(Struct, frozen=True, array_like=True, tag="abandon", kw_only=True):
    """Give a leased task back to the tail of its queue.

    Attributes:
        undelivered: The claim's answer never reached the worker, so the delivery does not count.
    """

    request: str
    id: str
    tenant: str
    worker: str
    token: int = 0
    undelivered: bool = False


class Nack(Struct, frozen=True, array_like=True, tag="nack", kw_only=True):
    """Give a leased task back after a delay.

    Attributes:
        delay_ms: As asked; 0 or less for the back-off policy.
    """

    request: str
    id: str
    tenant: str
    worker: str
    delay_ms: int = 0
    reason: str = ""
    token: int = 0


class Submit(Struct, frozen=True, array_like=True, tag="submit", kw_only=True):
    """End a leased task with a result: status COMPLETED or FAILED."""

    request: str
    id: str
    tenant: str
    worker: str
    status: str
    body: str = ""
    error: str = ""
    artifacts: tuple[Artifact, ...] = ()
    token: int = 0


class Cancel(Struct, frozen=True, array_like=True, tag="cancel", kw_only=True):
    """End a task that is not terminal yet, whoever holds it."""

    request: str
    id: str
    tenant: str


class Advance(Struct, frozen=True, array_like=True, tag="advance", kw_only=True):
    """Let time act on at most `count` tasks whose instant has come; the leader's own operation."""

    count: int
    leases_too: bool = True


Operation = Create | Claim | Heartbeat | Abandon | Nack | Submit | Cancel | Advance
