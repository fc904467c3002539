"""Keyspace: the table of keys, and which of them a task has. Pure; nothing here reads or writes.

    codeq/tasks/<id>                                             the task
    codeq/payload/<id>                                           its payload's JSON text
    codeq/results/<id>                                           how it ended
    codeq/q/<queue>/<tenant>/pending/<priority>/<seq be8>/<id>   READY, in claim order
    codeq/q/<queue>/<tenant>/delayed/<due be8>/<id>              DELAYED
    codeq/q/<queue>/<tenant>/inprog/<id>                         LEASED
    codeq/q/<queue>/<tenant>/dlq/<id>                            DEAD
    codeq/lease/<until be8>/<id>                                 LEASED, in the order leases end
    codeq/ttl/<due be8>/<id>                                     every other timer, in order of time
    codeq/claim/<request>/<id>                                   LEASED, by the claim that leased it
    codeq/idempo/<tenant>/<key>                                  what an idempotency key stands for
    codeq/stats/<queue>/<tenant>                                 how many tasks are in each place
    codeq/meta/<name>                                            applied index, digest, clock, ...

A queue is a command in lower case; the default tenant is `_`, which no tenant's name can be. The
priority is one byte, 255 - priority, so that 9 sorts first. Binary parts may contain the byte of
`/`, so keys are taken apart from the right, where the id is: ids, requests, commands and tenants
contain no `/`. An idempotency key may, being last.
"""

from __future__ import annotations

from codeq_cluster.core.task import State, Task

TASKS = b"codeq/tasks/"
PAYLOADS = b"codeq/payload/"
RESULTS = b"codeq/results/"
LEASES = b"codeq/lease/"
TIMERS = b"codeq/ttl/"
CLAIMS = b"codeq/claim/"
KEYS = b"codeq/idempo/"
STATS = b"codeq/stats/"
META = b"codeq/meta/"
QUEUES = b"codeq/q/"

_DEFAULT_TENANT = "_"
_PRIORITY_BYTES = 1
_NUMBER_BYTES = 8


def queue_of(command: str) -> str:
    """Return the queue of a command: queues ignore case."""
    return command.lower()


def task_key(task_id: str) -> bytes:
    """Return the key of the task's record."""
    return b"codeq/tasks/" + _segment(task_id)


def payload_key(task_id: str) -> bytes:
    """Return the key of the payload, written once."""
    return b"codeq/payload/" + _segment(task_id)


def result_key(task_id: str) -> bytes:
    """Return the key of the task's result."""
    return b"codeq/results/" + _segment(task_id)


def pending_key(queue: str, tenant: str, priority: int, seq: int, task_id: str) -> bytes:
    """Return the key of a READY task: its place in the claim order."""
    return b"%b%c/%b/%b" % (
        pending_prefix(queue, tenant),
        0xFF - priority,
        _number(seq),
        _segment(task_id),
    )


def delayed_key(queue: str, tenant: str, due_ms: int, task_id: str) -> bytes:
    """Return the key of a DELAYED task."""
    return b"%bdelayed/%b/%b" % (_queue(queue, tenant), _number(due_ms), _segment(task_id))


def inprog_key(queue: str, tenant: str, task_id: str) -> bytes:
    """Return the key of a LEASED task."""
    return b"%binprog/%b" % (_queue(queue, tenant), _segment(task_id))


def dlq_key(queue: str, tenant: str, task_id: str) -> bytes:
    """Return the key of a DEAD task."""
    return b"%bdlq/%b" % (_queue(queue, tenant), _segment(task_id))


def lease_key(until_ms: int, task_id: str) -> bytes:
    """Return the key of a lease in the order of time."""
    return b"codeq/lease/%b/%b" % (_number(until_ms), _segment(task_id))


def timer_key(due_ms: int, task_id: str) -> bytes:
    """Return the key of any other timer in the order of time."""
    return b"codeq/ttl/%b/%b" % (_number(due_ms), _segment(task_id))


def claim_key(request: str, task_id: str) -> bytes:
    """Return the key under which a retried claim finds what it leased."""
    return claim_prefix(request) + _segment(task_id)


def idempotency_key(tenant: str, key: str) -> bytes:
    """Return the key of the row that an idempotency key has; `key` is any text."""
    assert key
    return b"codeq/idempo/%b/%b" % (_tenant(tenant), key.encode())


def stats_key(queue: str, tenant: str) -> bytes:
    """Return the key of the queue's counters."""
    return b"codeq/stats/%b/%b" % (_segment(queue), _tenant(tenant))


def meta_key(name: str) -> bytes:
    """Return the key of a number the shard keeps about itself."""
    return b"codeq/meta/" + _segment(name)


def pending_prefix(queue: str, tenant: str) -> bytes:
    """Return what the keys of a queue's READY tasks begin with."""
    return _queue(queue, tenant) + b"pending/"


def dlq_prefix(queue: str, tenant: str) -> bytes:
    """Return what the keys of a queue's dead letters begin with."""
    return _queue(queue, tenant) + b"dlq/"


def claim_prefix(request: str) -> bytes:
    """Return what the keys of the tasks leased under a claim begin with."""
    return b"codeq/claim/%b/" % _segment(request)


def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """Return start and end of the half-open range of keys that begin with `prefix`."""
    head = prefix.rstrip(b"\xff")
    assert head  # Nothing of ours begins with a byte 0xFF alone.
    return prefix, head[:-1] + bytes((head[-1] + 1,))


def pending_range(queue: str, tenant: str) -> tuple[bytes, bytes]:
    """Return the half-open range of a queue's READY tasks."""
    return prefix_range(pending_prefix(queue, tenant))


def timed_range(prefix: bytes, until_ms: int) -> tuple[bytes, bytes]:
    """Return the half-open range of the timers up to and including `until_ms`.

    Args:
        prefix: `LEASES` or `TIMERS`.
        until_ms: Unix milliseconds.
    """
    assert prefix in (LEASES, TIMERS)
    return prefix, prefix + _number(until_ms + 1)


def pending_parts(key: bytes) -> tuple[int, int, str]:
    """Return (priority, seq, task id) of a READY task's key."""
    slash = key.rindex(b"/")
    return 0xFF - key[slash - 10], int.from_bytes(key[slash - 8 : slash]), key[slash + 1 :].decode()


def timed_parts(key: bytes) -> tuple[int, str]:
    """Return (instant in Unix milliseconds, task id) of a lease's, a timer's or a delayed key."""
    slash = key.rindex(b"/")
    return int.from_bytes(key[slash - 8 : slash]), key[slash + 1 :].decode()


def last_part(key: bytes) -> str:
    """Return the task id that ends a key of a task, payload, result, claim, place or timer."""
    return key[key.rindex(b"/") + 1 :].decode()


def stats_parts(key: bytes) -> tuple[str, str]:
    """Return (queue, tenant) of a key of counters; the default tenant is empty."""
    queue, tenant = key.removeprefix(STATS).decode().split("/")
    return queue, "" if tenant == _DEFAULT_TENANT else tenant


def index_rows(task: Task) -> dict[bytes, bytes]:
    """Return every index row of the task: a function of the task alone, so it is in one place.

    Its record, payload, result, idempotency row and counters are not indexes.
    """
    return dict.fromkeys(index_keys(task), b"")


def index_keys(task: Task) -> tuple[bytes, ...]:
    """Return the keys of `index_rows`: the task's place, its timer if any, its claim if leased."""
    queue = task.command.lower()
    tenant = task.tenant
    task_id = task.id
    match task.state:
        case State.READY:
            place = pending_key(queue, tenant, task.priority, task.seq, task_id)
            return (place, timer_key(task.expires_ms, task_id)) if task.expires_ms else (place,)
        case State.LEASED:
            return (
                inprog_key(queue, tenant, task_id),
                lease_key(task.lease_until_ms, task_id),
                claim_key(task.claim, task_id),
            )
        case State.DELAYED:
            place = delayed_key(queue, tenant, task.due_ms, task_id)
            expires_first = 0 < task.expires_ms < task.due_ms
            return place, timer_key(task.expires_ms if expires_first else task.due_ms, task_id)
        case State.DEAD:
            return dlq_key(queue, tenant, task_id), timer_key(task.retain_until_ms, task_id)
        case State.DONE | State.FAILED:
            return (timer_key(task.retain_until_ms, task_id),)


def _queue(queue: str, tenant: str) -> bytes:
    return b"codeq/q/%b/%b/" % (_segment(queue), _tenant(tenant))


def _tenant(tenant: str) -> bytes:
    assert tenant != _DEFAULT_TENANT
    return _segment(tenant or _DEFAULT_TENANT)


def _segment(name: str) -> bytes:
    assert name
    assert "/" not in name
    return name.encode()


def _number(value: int) -> bytes:
    return value.to_bytes(_NUMBER_BYTES)
