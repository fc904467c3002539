"""The lifecycle again, as plainly as it can be said: one mutable item a task, every answer a tuple.

It shares no code with the core but the operations it is asked. Where the two disagree, one of them
misreads the semantics.
"""

from __future__ import annotations

from dataclasses import dataclass

from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Create,
    Heartbeat,
    Nack,
    Operation,
    Submit,
)

BASE_MS = 8
MAX_MS = 40
RETENTION_MS = 50
DLQ_RETENTION_MS = 90
KEY_RETENTION_MS = 70

Answer = tuple[object, ...]


@dataclass
class Item:
    """A task."""

    id: str
    tenant: str
    queue: str
    priority: int
    max_attempts: int
    key: str
    payload: str
    created_ms: int
    place: str
    expires_ms: int
    timer_ms: int = 0  # When the delay, the lease or the retention ends.
    order: int = 0
    attempts: int = 0
    token: int = 0
    worker: str = ""
    claim: str = ""
    cancelled_under: str = ""
    submitted: tuple[object, ...] = ()


class Model:
    """One shard."""

    def __init__(self) -> None:
        self.now_ms = 1
        self.draw = 0.5
        self.items: dict[str, Item] = {}
        self._order = 0
        self._answers: dict[tuple[str, str], Answer] = {}

    def ask(self, operation: Operation) -> Answer:
        """Do what the operation asks and return what it is answered."""
        match operation:
            case Create():
                return self._create(operation)
            case Claim():
                return self._claim(operation)
            case Advance():
                return self._advance(operation)
            case _:
                return self._act(operation)

    def _create(self, asked: Create) -> Answer:
        if asked.id in self.items:
            return "created", asked.id, False
        for item in self.items.values():
            if asked.idempotency_key and (item.tenant, item.key) == (
                asked.tenant,
                asked.idempotency_key,
            ):
                if item.payload == asked.payload:
                    return "created", item.id, True
                return "rejected", "idempotency-conflict"
        start_ms = asked.run_at_ms or self.now_ms + asked.delay_ms
        item = self.items[asked.id] = Item(
            asked.id,
            asked.tenant,
            asked.command.lower(),
            asked.priority,
            asked.max_attempts,
            asked.idempotency_key,
            asked.payload,
            self.now_ms,
            "",
            self.now_ms + asked.ttl_ms if asked.ttl_ms else 0,
        )
        self._wait(item, start_ms - self.now_ms)
        return "created", asked.id, False

    def _claim(self, asked: Claim) -> Answer:
        held = [i.id for i in self.items.values() if i.claim == asked.request]
        if asked.retry and held:
            return "claimed", tuple(sorted(held))
        wanted = [command.lower() for command in asked.commands]
        ready = [
            item
            for item in self.items.values()
            if item.place == "ready"
            and item.tenant == asked.tenant
            and (not wanted or item.queue in wanted)
            and not 0 < item.expires_ms <= self.now_ms
        ]
        ready.sort(key=lambda i: (-i.priority, wanted.index(i.queue) if wanted else 0, i.order))
        for item in ready[: asked.count]:
            item.place = "leased"
            item.attempts += 1
            item.token += 1
            item.worker = asked.worker
            item.claim = asked.request
            item.timer_ms = self.now_ms + asked.lease_ms
        ids = [item.id for item in ready[: asked.count]]
        return "claimed", tuple(sorted(ids) if asked.retry else ids)

    def _act(self, asked: Heartbeat | Abandon | Nack | Submit | Cancel) -> Answer:
        item = self.items.get(asked.id)
        if item is None or item.tenant != asked.tenant:
            return "rejected", "not-found"
        if not isinstance(asked, Heartbeat) and (asked.request, item.id) in self._answers:
            return self._answers[asked.request, item.id]
        answer = self._cancel(item) if isinstance(asked, Cancel) else self._hold(item, asked)
        if isinstance(asked, Abandon) and asked.undelivered:
            return answer
        if answer[0] != "rejected" and not isinstance(asked, Heartbeat):
            self._answers[asked.request, item.id] = answer
        return answer

    def _cancel(self, item: Item) -> Answer:
        if item.place in ("ended", "dead"):
            return "rejected", "already-terminal"
        item.cancelled_under = item.worker
        self._end(item, "ended")
        return "cancelled", item.id

    def _hold(self, item: Item, asked: Heartbeat | Abandon | Nack | Submit) -> Answer:
        content: tuple[object, ...] = ()
        if isinstance(asked, Submit):
            content = (asked.status, asked.body, asked.error, asked.worker)
            if item.submitted == content:
                return "submitted", *content
        refused = self._refused(item, asked)
        if refused:
            return "rejected", refused
        if isinstance(asked, Heartbeat):
            item.timer_ms = self.now_ms + asked.extend_ms
            return "extended", item.timer_ms
        if isinstance(asked, Submit):
            item.submitted = content
            self._end(item, "ended")
            return "submitted", *content
        if isinstance(asked, Abandon) and asked.undelivered:
            item.attempts -= 1
            self._wait(item, 0)
            return "returned", False, 0
        if item.attempts >= item.max_attempts:
            self._end(item, "dead")
            return "returned", True, 0
        delay_ms = 0
        if isinstance(asked, Nack):
            grown_ms = int(self.draw * min(BASE_MS * 2**item.attempts, MAX_MS))
            delay_ms = min(asked.delay_ms, MAX_MS) if asked.delay_ms > 0 else grown_ms
        self._wait(item, delay_ms)
        return "returned", False, delay_ms

    def _refused(self, item: Item, asked: Heartbeat | Abandon | Nack | Submit) -> str:
        if item.place != "leased":
            stale = 0 < asked.token < item.token or item.cancelled_under == asked.worker
            return "lease-lost" if stale else "not-in-progress"
        if asked.token not in (0, item.token):
            return "lease-lost"
        if asked.worker != item.worker:
            return "not-owner"
        return ""

    def _advance(self, asked: Advance) -> Answer:
        due = [item for item in self.items.values() if self._is_due(item, asked.leases_too)]
        due.sort(key=lambda item: (self._instant_ms(item), item.id))
        for item in due[: asked.count]:
            if item.place in ("ended", "dead"):
                del self.items[item.id]
            elif item.place == "leased":
                if item.attempts >= item.max_attempts:
                    self._end(item, "dead")
                else:
                    self._wait(item, 0)
            elif 0 < item.expires_ms <= self.now_ms:
                self._end(item, "dead")
            else:
                self._wait(item, 0)
        return "advanced", len(due[: asked.count])

    def _is_due(self, item: Item, leases_too: bool) -> bool:
        if item.place == "leased" and not leases_too:
            return False
        return 0 < self._instant_ms(item) <= self.now_ms

    def _instant_ms(self, item: Item) -> int:
        instants = [item.timer_ms]
        if item.place in ("ready", "delayed"):
            instants.append(item.expires_ms)
        return min((instant for instant in instants if instant), default=0)

    def _wait(self, item: Item, delay_ms: int) -> None:
        item.worker = item.claim = ""
        if delay_ms > 0:
            item.place = "delayed"
            item.timer_ms = self.now_ms + delay_ms
        else:
            item.place = "ready"
            item.timer_ms = 0
            self._order += 1
            item.order = self._order

    def _end(self, item: Item, place: str) -> None:
        item.worker = item.claim = ""
        item.place = place
        item.timer_ms = self.now_ms + (DLQ_RETENTION_MS if place == "dead" else RETENTION_MS)
        if item.key:
            item.timer_ms = max(item.timer_ms, item.created_ms + KEY_RETENTION_MS)
