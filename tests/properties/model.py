"""Model: a second, plain implementation of the lifecycle with mutable tasks and tuple answers.

It shares only the operations with the core. Where the two disagree, one of them is wrong.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core import task_ids
from codeq_cluster.core.holds import HoldKey, Nack
from codeq_cluster.core.lane import FlowRule
from codeq_cluster.core.new_task import Create, CreateKeyed
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Finish,
    Heartbeat,
    Operation,
    Purge,
    Requeue,
    Revise,
    Staging,
    Submit,
    UndoRequeue,
)
from codeq_cluster.core.reject import Reject
from codeq_cluster.core.relays import RelayedTask, TakeRelays
from codeq_cluster.core.schedules import RunEnded
from codeq_cluster.core.sharding import shard_of, shard_of_key, shard_of_lane, with_shard
from codeq_cluster.core.task import FollowUp, More, Run

from .model_items import DLQ_RETENTION_MS, Answer, Items
from .model_lanes import CHANGES_MAX, Lanes, waiting
from .model_schedules import Asked as AskedOfSchedule
from .model_schedules import Schedules
from .model_task import (
    ATTEMPTS_DEFAULT,
    BASE_MS,
    BYTES_MAX,
    ENDED,
    KEY_RETENTION_MS,
    LEASED_MAX,
    MAX_MS,
    OVERTIME_MS,
    RETENTION_MS,
    SWEEP_DELAY_MS,
    TIGHT,
    WAITING_MAX,
    Death,
    Item,
    body_of,
    delivery_of,
)
from .model_turns import Turns

_Held = Heartbeat | Abandon | Nack | Reject | Submit | Staging


class Model:
    """One shard."""

    def __init__(self) -> None:
        self.draw = 0.5
        self.items: dict[str, Item] = {}
        self.beside = Items()
        self.schedules = Schedules(self)
        self._ends: list[RunEnded] = []
        self._order = 0
        beside = self.beside
        self.lanes = Lanes(
            self.items, beside.flows, beside.key_rules, self._rank, lambda: self.now_ms
        )
        self._ended = 0
        self._turns: dict[str, Turns] = {}
        self._answers: dict[tuple[str, str], Answer] = {}
        self._revived: set[tuple[str, str]] = set()

    @property
    def now_ms(self) -> int:
        """Return the clock's time."""
        return self.beside.now_ms

    def pass_ms(self, passed_ms: int) -> None:
        """Move the clock."""
        self.beside.now_ms += passed_ms

    def ask(self, operation: Operation) -> Answer:
        """Perform the operation with what it does to the keys of tasks; return its answer.

        The ends of runs act after it.
        """
        self.lanes.before(operation.count if isinstance(operation, Advance) else CHANGES_MAX)
        if isinstance(operation, AskedOfSchedule):
            answer = self.schedules.ask(operation)
        else:
            answer = self._ask(operation)
        changed = self.lanes.after(self.beside.due_lanes)
        while self.beside.due_flows:
            self.lanes.walk(self.beside.due_flows.pop(0), changed)
        while self._ends:
            self.schedules.ended(self._ends.pop(0))
        return answer

    def _ask(self, operation: Operation) -> Answer:  # noqa: C901, PLR0912 - a line an operation
        match operation:
            case Create():
                return self._create(operation)
            case CreateKeyed():
                return self._create(operation.create)
            case Claim():
                return self._claim(operation)
            case Advance():
                return self._advance(operation)
            case Requeue():
                return self._requeue(operation)
            case Delete():
                return self._delete(operation)
            case Purge():
                return self._purge(operation)
            case Revise():
                return self._revise(operation)
            case UndoRequeue():
                return self._undo_requeue(operation)
            case Heartbeat() | Abandon() | Nack() | Reject() | Submit() | Staging() | Cancel():
                return self._act(operation)
            case Finish():
                return self._act(operation.submit, follow=operation)
            case HoldKey():
                return self._act(operation.nack, holds=operation)
            case TakeRelays():
                return self._take(operation)
            case _:
                return self.beside.ask(operation)

    # What schedules ask of tasks.

    def has(self, task_id: str) -> bool:
        """Return whether there is such a task."""
        return task_id in self.items

    def is_waiting(self, task_id: str) -> bool:
        """Return whether a task waits for a worker."""
        return task_id in self.items and self.items[task_id].place in ("ready", "delayed")

    def usage(self, tenant: str) -> tuple[int, int]:
        """Return how many of a tenant's tasks wait, and the bytes of all."""
        own = [item for item in self.items.values() if item.tenant == tenant]
        return sum(self.is_waiting(item.id) for item in own), sum(item.size for item in own)

    def refusal_of_run(self, create: Create, *, begun: int, before: tuple[int, int]) -> Answer:
        """Return why a run cannot begin when so many others have, after the usage `before`."""
        if refused := self._outside_tiers(create.tenant, create):
            return refused
        if create.tenant != TIGHT:
            return ()
        # All runs of a schedule are of one size, and those that have ended keep theirs.
        waiting, stored_bytes = before
        if waiting + begun >= WAITING_MAX:
            return "rejected", "budget-exceeded", "readyTasks"
        if stored_bytes + (max(0, begun) + 1) * len(create.payload) > BYTES_MAX:
            return "rejected", "budget-exceeded", "storedBytes"
        return ()

    def begin_run(self, create: Create, run: Run) -> None:
        """Make a run's task."""
        self._make(create)
        self.items[create.id].run = run

    def cancel_run(self, task_id: str, request: str) -> None:
        """End a run's task, unless it has ended."""
        item = self.items.get(task_id)
        if item is not None and item.place not in ENDED:
            item.cancelled_under = item.worker
            self._end(item, "failed", error="CANCELLED", request=request)

    def leased(self, tenant: str, queue: str = "") -> int:
        """Return how many tasks are in progress, of one queue or of all."""
        return sum(
            item.place == "leased" and item.tenant == tenant and queue in ("", item.queue)
            for item in self.items.values()
        )

    def why(self, item: Item) -> str:
        """Return the first reason that holds for the task's state."""
        now_ms, tenant, queue = self.now_ms, item.tenant, item.queue
        most = self.beside.says(tenant, queue, "max_consumers")
        waits = item.place in ("ready", "delayed", "held")
        holds = {
            "completed": item.place == "done",
            "cancelled": item.place == "failed" and item.error == "CANCELLED",
            "failed": item.place == "failed",
            "dead-letter": item.place == "dead",
            "lease-expired": item.place == "leased" and item.timer_ms <= now_ms,
            "running": item.place == "leased",
            "expiring": waits and 0 < item.expires_ms <= now_ms,
            "key-stopped": item.place == "held" and self.lanes.stopper(item) != "",
            "key-paused": item.place == "held" and self.lanes.is_paused(item),
            "key-held": item.place == "held" and self.lanes.held_until_ms(item) > now_ms,
            "rate-limited": item.place == "held" and self.lanes.limited_until_ms(item) > now_ms,
            "key-busy": item.place == "held",
            "becoming-ready": item.place == "delayed" and item.timer_ms <= now_ms,
            "backing-off": item.place == "delayed" and item.attempts > 0,
            "scheduled": item.place == "delayed",
            "queue-paused": (tenant, queue) in self.beside.pauses,
            "consumer-limit": 0 < most <= self.leased(tenant, queue),
            "in-flight-limit": tenant == TIGHT and self.leased(tenant) >= LEASED_MAX,
            "behind-others": self.ahead(item) > 0,
            "no-claim": True,
        }
        return next(reason for reason, it_does in holds.items() if it_does)

    def ahead(self, item: Item) -> int:
        """Return how many ready tasks of its queue precede a ready task."""
        return sum(
            (-other.priority, other.order) < (-item.priority, item.order)
            for other in self._ready(item.tenant, item.queue)
        )

    def _ready(self, tenant: str, queue: str) -> list[Item]:
        ready = [
            item
            for item in self.items.values()
            if (item.place, item.tenant, item.queue) == ("ready", tenant, queue)
        ]
        return sorted(ready, key=lambda item: (-item.priority, item.order))

    def _create(self, asked: Create) -> Answer:
        if asked.id in self.items:
            return "created", asked.id, False
        own = [item for item in self.items.values() if item.tenant == asked.tenant]
        for item in own:
            if asked.idempotency_key and _once(item) == _once_asked(asked):
                if item.asked == asked.payload:
                    return "created", item.id, True
                return "rejected", "idempotency-conflict"
        if refused := self._outside_tiers(asked.tenant, asked):
            return refused
        if refused := self._above_burst(asked):
            return refused
        if asked.tenant == TIGHT:
            if waiting(own) >= WAITING_MAX:
                return "rejected", "budget-exceeded", "readyTasks"
            if sum(item.size for item in own) + len(asked.payload) > BYTES_MAX:
                return "rejected", "budget-exceeded", "storedBytes"
        self._make(asked)
        return "created", asked.id, False

    def _above_burst(self, asked: Create) -> Answer:
        topic = self.beside.topics.get((asked.tenant, asked.command.lower()), {})
        rule = topic.get("per_key") if asked.key else None
        if rule is not None and rule.rate is not None and asked.cost > rule.rate.burst:
            return "rejected", "invalid-cost", str(rule.rate.burst)
        return ()

    def _outside_tiers(self, tenant: str, asked: Create) -> Answer:
        """Return the refusal of a priority that the queue's topic does not have, or nothing."""
        tiers = self.beside.tiers(tenant, asked.command.lower())
        # A tier of ten means nine, because requests are clamped the same way.
        if tiers and asked.priority not in tiers and not (asked.priority == 9 and 10 in tiers):
            return "rejected", "invalid-priority", ", ".join(str(tier) for tier in tiers)
        return ()

    def _make_unless_there(
        self, asked: Create, origin: tuple[str, str], caused_ms: int = 0
    ) -> None:
        known = {_once(item) for item in self.items.values() if item.tenant == asked.tenant}
        taken = bool(asked.idempotency_key) and _once_asked(asked) in known
        if asked.id not in self.items and not taken:
            self._make(asked, origin, caused_ms)

    def _make(self, asked: Create, origin: tuple[str, str] = ("", ""), caused_ms: int = 0) -> None:
        caused_ms = min(caused_ms or self.now_ms, self.now_ms)
        most = self.beside.says(asked.tenant, asked.command.lower(), "max_attempts")
        attempts = asked.max_attempts or most or ATTEMPTS_DEFAULT
        start_ms = asked.run_at_ms or caused_ms + asked.delay_ms
        item = self.items[asked.id] = Item(
            id=asked.id,
            tenant=asked.tenant,
            command=asked.command,
            priority=asked.priority,
            max_attempts=min(attempts, most) if most else attempts,
            key=asked.idempotency_key,
            payload=asked.payload,
            asked=asked.payload,
            webhook=asked.webhook,
            created_ms=self.now_ms,
            place="",
            expires_ms=caused_ms + asked.ttl_ms if asked.ttl_ms else 0,
            origin=origin,
            lane=asked.key,
            cost=asked.cost,
        )
        self._handle(item, asked)
        self._wait(item, start_ms - self.now_ms)

    def _handle(self, item: Item, asked: Create) -> None:
        if (own := asked.handling) is not None:
            item.timeout_ms = own.timeout_ms
            item.backoff = (own.backoff, own.backoff_base_ms, own.backoff_max_ms)
        if limit := self.beside.handling(item.tenant, item.queue).timeout_ms:
            item.timeout_ms = min(item.timeout_ms or limit, limit)

    def _claim(self, asked: Claim) -> Answer:
        held = [item.id for item in self.items.values() if item.claim == asked.request]
        if asked.retry and held:
            return "claimed", tuple(sorted(held))
        most = asked.count
        if asked.tenant == TIGHT:
            most = min(most, LEASED_MAX - self.leased(TIGHT))
            if most < 1:
                return "rejected", "budget-exceeded", "inFlight"
        wanted = list(dict.fromkeys(command.lower() for command in asked.commands))
        if not wanted:
            wanted = sorted(
                {i.queue for i in self.items.values() if self._ready(asked.tenant, i.queue)}
            )
        turns = self._turns.setdefault(asked.tenant, Turns())
        ids: list[str] = []
        while len(ids) < most:
            heads = {queue: item for queue in wanted if (item := self._head(asked.tenant, queue))}
            if not heads:
                break
            best = max(item.priority for item in heads.values())
            queue = turns.first([queue for queue in heads if heads[queue].priority == best])
            if len(wanted) > 1:
                turns.took(queue, self.beside.says(asked.tenant, queue, "weight") or 1)
            item = heads[queue]
            item.place = "leased"
            item.attempts += 1
            item.token += 1
            item.worker, item.worker_name = asked.worker, asked.worker_name
            item.claimed_ms = self.now_ms
            item.claim = asked.request
            item.timer_ms = self.now_ms + asked.lease_ms
            ids.append(item.id)
        return "claimed", tuple(sorted(ids) if asked.retry else ids)

    def _head(self, tenant: str, queue: str) -> Item | None:
        """Return the next task of the queue that may be handed out."""
        most = self.beside.says(tenant, queue, "max_consumers")
        if (tenant, queue) in self.beside.pauses or 0 < most <= self.leased(tenant, queue):
            return None
        alive = [i for i in self._ready(tenant, queue) if not 0 < i.expires_ms <= self.now_ms]
        return alive[0] if alive else None

    def _act(
        self,
        asked: _Held | Cancel,
        *,
        follow: Finish | None = None,
        holds: HoldKey | None = None,
    ) -> Answer:
        item = self.items.get(asked.id)
        if item is None or item.tenant != asked.tenant:
            return "rejected", "not-found"
        request = "" if isinstance(asked, Heartbeat | Staging) else asked.request
        if request and (request, item.id) in self._answers:
            return self._answers[request, item.id]
        if isinstance(asked, Cancel):
            answer = self._cancel(item, asked)
        else:
            answer = self._hold(item, asked, follow, holds)
        if isinstance(asked, Abandon) and asked.undelivered:
            return answer
        if answer[0] != "rejected" and request:
            self._answers[request, item.id] = answer
        return answer

    def _cancel(self, item: Item, asked: Cancel) -> Answer:
        if item.place in ENDED:
            return "rejected", "already-terminal"
        item.cancelled_under = item.worker
        self._end(item, "failed", error="CANCELLED", request=asked.request)
        return "cancelled", item.id

    def _hold(
        self, item: Item, asked: _Held, follow: Finish | None, holds: HoldKey | None
    ) -> Answer:
        if isinstance(asked, Submit) and item.submitted == _content(asked, follow):
            return "submitted", *item.submitted, item.followers
        refused = self._refused(item, asked)
        if refused:
            return "rejected", refused
        match asked:
            case Heartbeat():
                return self._extend(item, self.now_ms + asked.extend_ms)
            case Staging():
                if asked.upload not in item.uploads:
                    if (item.tenant, f"{item.id}.{asked.upload}") in self.beside.sweeps:
                        return "rejected", "lease-lost"
                    item.uploads.append(asked.upload)
                return "changed", 1
            case Submit():
                return self._submit(item, asked, follow)
            case Abandon():
                return self._abandon(item, asked)
            case Nack() | Reject():
                return self._nack(item, asked, holds)

    def _extend(self, item: Item, until_ms: int) -> Answer:
        if item.timeout_ms:
            last_ms = item.claimed_ms + item.timeout_ms + OVERTIME_MS
            until_ms = min(until_ms, max(last_ms, item.timer_ms))
        item.timer_ms = until_ms
        return "extended", until_ms

    def _submit(self, item: Item, asked: Submit, follow: Finish | None) -> Answer:
        if not set(asked.uploads) <= set(item.uploads):
            return "rejected", "lease-lost"
        for each in follow.next if follow else ():
            if refused := self._outside_tiers(item.tenant, each):
                return refused
        item.submitted = _content(asked, follow)
        self._end(
            item,
            "done" if asked.status == "COMPLETED" else "failed",
            error=asked.error,
            request=asked.request,
            said=asked,
        )
        if follow is not None:
            self._follow(item, follow)
        return "submitted", *item.submitted, item.followers

    def _follow(self, item: Item, asked: Finish) -> None:
        """Make what follows a task that has just ended, here or by a relay."""
        home = shard_of(item.id, asked.shards)
        names: list[str] = []
        made: tuple[FollowUp, ...] = ()
        for position, each in enumerate(asked.next):
            name, key = f"{item.id}.{item.endings}.{position}", each.idempotency_key
            to = shard_of_key(item.tenant, key, asked.shards) if key else home
            if each.key:
                queue = each.command.lower()
                to = shard_of_lane(item.tenant, queue, each.key, asked.shards)
            drawn = task_ids.derived(item.tenant, name)
            task_id = with_shard(drawn, shards=asked.shards, wanted=to)
            origin = (item.id, item.origin[1] or item.id)
            create = replace(each, id=task_id, tenant=item.tenant)
            names.append(key or task_id)
            made += (FollowUp(key=key) if key else FollowUp(task_id),)
            if to == home:
                self._make_unless_there(create, origin)
            else:
                more = More(parent_id=origin[0], root_id=origin[1])
                relay = {"tenant": item.tenant, "id": name, "task_id": item.id, "to": to}
                self.beside.send({**relay, "effect": RelayedTask(create, more)})
        item.followers = tuple(names)
        body = self.beside.bodies.get((item.tenant, f"{item.id}.{item.endings}"), {})
        body |= {"next": made, "next_digest": asked.digest} if body else {}

    def _take(self, asked: TakeRelays) -> Answer:
        name = f"from.{asked.origin}"
        last = self.beside.links.get(("", name), {"number": 0})["number"]
        new = [each for each in asked.relays if each.number > last]
        if asked.after > last or not new:
            return "taken", last
        for each in new:
            if isinstance(each.effect, RunEnded):
                self._ends.append(each.effect)
                continue
            if isinstance(each.effect, FlowRule):
                self.beside.put_in_force(each.effect)
                continue
            create, more = each.effect.create, each.effect.more
            self._make_unless_there(create, (more.parent_id, more.root_id), each.at_ms)
        self.beside.link(name)["number"] = new[-1].number
        return "taken", new[-1].number

    def _abandon(self, item: Item, asked: Abandon) -> Answer:
        if asked.undelivered:
            item.attempts -= 1
        elif item.attempts >= item.max_attempts:
            self._end(item, "dead", error="MAX_ATTEMPTS", request=asked.request)
            return "returned", True, 0
        else:
            item.revival = ""
        self._wait(item, 0)
        return "returned", False, 0

    def _nack(self, item: Item, asked: Nack | Reject, holds: HoldKey | None) -> Answer:
        if holds is not None:
            return self._hold_key(item, holds)
        rejects = isinstance(asked, Reject)
        if rejects or item.attempts >= item.max_attempts:
            error = asked.reason or ("REJECTED" if rejects else "MAX_ATTEMPTS")
            self._end(item, "dead", error=error, request=asked.request)
            return "returned", True, 0
        delay_ms = self._delay_ms(item, asked)
        item.revival = ""
        self._wait(item, delay_ms)
        return "returned", False, delay_ms

    def _hold_key(self, item: Item, asked: HoldKey) -> Answer:
        if asked.commands and item.queue not in [each.lower() for each in asked.commands]:
            return "rejected", "event-type-not-allowed"
        if not item.lane or self.lanes.rule(item.tenant, item.queue) is None:
            return "rejected", "nothing-to-hold", "key"
        delay_ms = self._delay_ms(item, asked.nack)
        item.attempts -= 1
        item.revival = ""
        self.lanes.hold(item, self.now_ms + delay_ms)
        self._wait(item, 0)
        return "returned", False, delay_ms

    def _delay_ms(self, item: Item, asked: Nack) -> int:
        return min(asked.delay_ms, MAX_MS) if asked.delay_ms > 0 else self._grown_ms(item)

    def _grown_ms(self, item: Item) -> int:
        """Return the delay of the back-off: of the task, else of its queue, else of the broker."""
        queue = self.beside.handling(item.tenant, item.queue)
        topics = (queue.backoff, queue.backoff_base_ms, queue.backoff_max_ms)
        brokers = ("exp_full_jitter", BASE_MS, MAX_MS)
        policy, base_ms, max_ms = (
            own or topic or broker
            for own, topic, broker in zip(item.backoff, topics, brokers, strict=True)
        )
        if policy == "linear":
            return min(base_ms * item.attempts, max_ms)
        return int(self.draw * min(base_ms * 2**item.attempts, max_ms))

    def _refused(self, item: Item, asked: _Held) -> str:
        if item.place != "leased":
            stale = 0 < asked.token < item.token or item.cancelled_under == asked.worker
            return "lease-lost" if stale else "not-in-progress"
        if asked.token not in (0, item.token):
            return "lease-lost"
        if asked.worker != item.worker:
            return "not-owner"
        return ""

    def _requeue(self, asked: Requeue) -> Answer:
        own = [
            item
            for task_id in dict.fromkeys(asked.ids)
            if (item := self.items.get(task_id)) and item.tenant == asked.tenant
        ]
        before = [item for item in own if (asked.request, item.id) in self._revived]
        dead = [item for item in own if item not in before and item.place == "dead"]
        for item in dead:
            self._revive(item, asked.request)
        if dead:
            self.beside.put_ids_on_record(asked, "dlq.requeue", asked.ids)
        return "changed", len(before) + len(dead)

    def _revive(self, item: Item, request: str) -> None:
        self._revived.add((request, item.id))
        item.revival = request
        item.death = Death(item.died_ms, item.attempts, item.error)
        item.attempts = item.expires_ms = item.result_bytes = 0
        item.error = item.dead_queue = item.ended_by = ""
        self._wait(item, 0)
        for asked_before, answer in self._answers.items():
            if asked_before[1] == item.id and answer == ("returned", True, 0):
                self._answers[asked_before] = ("returned", False, 0)

    def _revise(self, asked: Revise) -> Answer:
        item = self.items.get(asked.id)
        if item is None or item.tenant != asked.tenant:
            return "changed", 0
        if (asked.request, item.id) in self._revived:
            return "changed", 1
        if item.place != "dead" or item.endings != asked.endings:
            return "changed", 0
        self._revive(item, asked.request)
        item.payload = asked.payload
        self.beside.put_on_record(asked, "dlq.revise", asked.id, "")
        return "changed", 1

    def _undo_requeue(self, asked: UndoRequeue) -> Answer:
        own = [i for i in self._named(asked.ids) if i.tenant == asked.tenant]
        before = [item for item in own if item.ended_by == asked.request]
        meant = [
            item
            for item in own
            if item not in before
            and item.place in ("ready", "held")
            and item.revival.split(".")[0] == asked.requeue
        ]
        for item in meant:
            assert item.death is not None
            self._revived.discard((item.revival, item.id))
            self._end(
                item,
                "dead",
                error=item.death.error,
                request=asked.request,
                at_ms=item.death.at_ms,
                told=True,
            )
            item.attempts = item.death.attempts
        if meant:
            self.beside.put_ids_on_record(asked, "dlq.undo", asked.ids)
        return "changed", len(before) + len(meant)

    def _purge(self, asked: Purge) -> Answer:
        own = [i for i in self._named(asked.ids) if i.tenant == asked.tenant]
        before = [item for item in own if item.ended_by == asked.request]
        meant = [
            item
            for item in own
            if item not in before
            and item.place in ("ready", "delayed", "held")
            and item.queue == asked.queue
        ]
        for item in meant:
            self._end(item, "failed", error="CANCELLED", request=asked.request)
        if meant:
            tasks = "task" if len(meant) == 1 else "tasks"
            told = f"{len(meant)} {tasks} on one shard"
            self.beside.put_on_record(asked, "queue.purge", asked.queue, told)
        return "changed", len(before) + len(meant)

    def _named(self, ids: tuple[str, ...]) -> list[Item]:
        return [self.items[task_id] for task_id in dict.fromkeys(ids) if task_id in self.items]

    def _delete(self, asked: Delete) -> Answer:
        ids = list(dict.fromkeys(asked.ids))
        gone = [task_id for task_id in ids if task_id not in self.items]
        places = ("dead",) if asked.dead_only else ENDED
        found = [self.items[task_id] for task_id in ids if task_id not in gone]
        meant = [item for item in found if item.tenant == asked.tenant and item.place in places]
        for item in meant:
            self._forget(item)
        if meant:
            action = "dlq.delete" if asked.dead_only else "task.delete"
            self.beside.put_ids_on_record(asked, action, asked.ids)
        return "changed", len(gone) + len(meant)

    def _advance(self, asked: Advance) -> Answer:
        due = [item for item in self.items.values() if self._is_due(item, asked.leases_too)]
        due.sort(key=lambda item: (self._instant_ms(item), item.id))
        for item in due[: asked.count]:
            if item.place in ENDED:
                self._forget(item)
            elif item.place == "leased" and item.attempts >= item.max_attempts:
                self._end(item, "dead", error="LEASE_EXPIRED")
            elif item.place != "leased" and 0 < item.expires_ms <= self.now_ms:
                self._end(item, "dead", error="MESSAGE_EXPIRED")
            else:
                if item.place == "leased":
                    item.revival = ""
                self._wait(item, 0)
        count = len(due[: asked.count])
        return "advanced", count + self._lapse(asked.count - count)

    def _lapse(self, most: int) -> int:
        due = self.lanes.due_rows(self.now_ms)
        return self.beside.lapse(most, [(at_ms, "lane", name) for at_ms, name in due])

    def _is_due(self, item: Item, leases_too: bool) -> bool:
        if item.place == "leased" and not leases_too:
            return False
        return 0 < self._instant_ms(item) <= self.now_ms

    def _instant_ms(self, item: Item) -> int:
        instants = [item.timer_ms]
        if item.place in ("ready", "delayed", "held"):
            instants.append(item.expires_ms)
        return min((instant for instant in instants if instant), default=0)

    def _wait(self, item: Item, delay_ms: int) -> None:
        item.worker = item.worker_name = item.claim = ""
        if delay_ms > 0:
            item.place = "delayed"
            item.timer_ms = self.now_ms + delay_ms
        else:
            item.place = "ready"
            item.timer_ms = 0
            self._rank(item)

    def _rank(self, item: Item) -> None:
        self._order += 1
        item.order = self._order

    def _end(
        self,
        item: Item,
        place: str,
        *,
        error: str,
        request: str = "",
        said: Submit | None = None,
        at_ms: int = 0,
        told: bool = False,
    ) -> None:
        at_ms = at_ms or self.now_ms
        says = self.beside.topics.get((item.tenant, item.queue), {})
        retention_ms = says.get("retention_s", 0) * 1000 or RETENTION_MS
        if place == "dead":
            item.dead_queue = says.get("dead_letter", "") or item.queue
            retention_ms = DLQ_RETENTION_MS
        item.worker = item.worker_name = item.claim = ""
        item.place = place
        item.error = error
        item.ended_by = request
        item.revival = ""
        item.died_ms = at_ms
        self._ended += 1
        item.ended = self._ended
        item.endings += 0 if told else 1
        item.result_bytes = len(error) + (len(said.body) if said else 0)
        item.timer_ms = at_ms + retention_ms
        if item.key:
            item.timer_ms = max(item.timer_ms, item.created_ms + KEY_RETENTION_MS)
        kept = list(said.uploads) if said else []
        unneeded = set(item.uploads) - set(kept)
        self.beside.sweep(item.tenant, item.id, unneeded, delay_ms=SWEEP_DELAY_MS)
        item.uploads = kept
        if item.run is not None and item.endings == 1 and not told:
            self._ends.append(_end_of_run(item, item.run, ended_ms=at_ms))
        if item.webhook and not told:
            delivery = delivery_of(item, now_ms=self.now_ms)
            self.beside.tell(delivery, body_of(item, said, request=request, now_ms=self.now_ms))

    def _forget(self, item: Item) -> None:
        del self.items[item.id]
        self.beside.sweep(item.tenant, item.id, item.uploads)
        self._answers = {key: said for key, said in self._answers.items() if key[1] != item.id}
        self._revived = {key for key in self._revived if key[1] != item.id}


def _once(item: Item) -> tuple[str, ...]:
    """Return among which tasks an idempotency key is known, and the key."""
    return (item.queue, item.lane, item.key) if item.lane else (item.key,)


def _once_asked(asked: Create) -> tuple[str, ...]:
    once = asked.idempotency_key
    return (asked.command.lower(), asked.key, once) if asked.key else (once,)


def _end_of_run(item: Item, run: Run, *, ended_ms: int) -> RunEnded:
    status = {"done": "COMPLETED", "dead": "DEAD", "failed": "FAILED"}[item.place]
    if item.place == "failed" and item.error == "CANCELLED":
        status = "CANCELLED"
    return RunEnded(tenant=item.tenant, run=run, status=status, ended_ms=ended_ms)


def _content(asked: Submit, follow: Finish | None) -> tuple[object, ...]:
    digest = follow.digest if follow is not None else ""
    return asked.status, asked.body, asked.error, asked.worker, digest
