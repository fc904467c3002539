"""The items of the model: a dictionary for each kind, with each item's fields by name."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from hashlib import blake2b
from typing import Any

from codeq_cluster.core.handling import Handling
from codeq_cluster.core.lane import FlowRule, PerKey, SetFlow, SetKey
from codeq_cluster.core.operations import (
    DeleteTopic,
    Delivered,
    PauseQueue,
    PutFlow,
    PutTopic,
    Record,
    RenewSubscription,
    Replay,
    ResumeQueue,
    RotateWebhookKey,
    Subscribe,
    Swept,
    Undelivered,
    Unsubscribe,
)
from codeq_cluster.core.relays import RelaysTaken
from codeq_cluster.core.sharding import home_shard

DLQ_RETENTION_MS = 90
AUDIT_RETENTION_MS = 60
DELIVERY_ATTEMPTS_MAX = 3
DELIVERY_BASE_MS = 4
DELIVERY_MAX_MS = 6
DELIVERY_AGE_MAX_MS = 45
SWEEP_RETRY_MS = 60_000
RELAY_KEPT_MS = 600_000


class Same(Enum):
    """Says that a rule of keys stays as it is."""

    SAME = auto()


SAME = Same.SAME

Answer = tuple[object, ...]
Fields = dict[str, Any]
Name = tuple[str, str]
Asked = (
    PutTopic
    | PutFlow
    | SetFlow
    | SetKey
    | DeleteTopic
    | PauseQueue
    | ResumeQueue
    | RotateWebhookKey
    | Subscribe
    | RenewSubscription
    | Unsubscribe
    | Delivered
    | Undelivered
    | Replay
    | Swept
    | Record
    | RelaysTaken
)


class Items:
    """The items of one shard, by tenant and id.

    Attributes:
        now_ms: The clock; the caller sets it to let time pass.
        bodies: The result that each delivery reports.
    """

    def __init__(self) -> None:
        self.now_ms = 1
        self.topics: dict[Name, Fields] = {}
        self.pauses: dict[Name, Fields] = {}
        self.subscriptions: dict[Name, Fields] = {}
        self.deliveries: dict[Name, Fields] = {}
        self.sweeps: dict[Name, Fields] = {}
        self.audits: dict[Name, Fields] = {}
        self.webhook_keys: dict[Name, Fields] = {}
        self.relays: dict[Name, Fields] = {}
        self.links: dict[Name, Fields] = {}
        self.schedules: dict[Name, Fields] = {}
        self.tallies: dict[Name, Fields] = {}
        self.ungenerated: list[Name] = []  # New schedules; their generations are drawn.
        self.flows: dict[Name, Fields] = {}
        self.key_rules: dict[Name, Fields] = {}
        self.due_lanes: list[Name] = []  # Keys whose instant has come.
        self.due_flows: list[Name] = []  # Rules whose walk over the keys goes on now.
        self.unnumbered: list[Name] = []  # Relays, in the order in which they were made.
        self._last_number = 0
        self.bodies: dict[Name, Fields] = {}

    @property
    def kinds(self) -> dict[str, dict[Name, Fields]]:
        """Return every kind by its name in the keys."""
        return {
            "audit": self.audits,
            "flow": self.flows,
            "hook": self.deliveries,
            "hookkey": self.webhook_keys,
            "keyrule": self.key_rules,
            "link": self.links,
            "pause": self.pauses,
            "relay": self.relays,
            "sched": self.schedules,
            "sub": self.subscriptions,
            "sweep": self.sweeps,
            "tally": self.tallies,
            "topic": self.topics,
        }

    def says(self, tenant: str, queue: str, field: str) -> int:
        """Return a numeric field of the queue's topic; 0 without a topic."""
        return int(self.topics.get((tenant, queue), {}).get(field, 0))

    def handling(self, tenant: str, queue: str) -> Handling:
        """Return what the queue's topic says of handling; nothing without a topic."""
        return self.topics.get((tenant, queue), {}).get("handling") or Handling()

    def tiers(self, tenant: str, queue: str) -> tuple[int, ...]:
        """Return the priorities that a queue's new tasks may have; empty for any."""
        found: tuple[int, ...] = self.topics.get((tenant, queue), {}).get("priority_tiers", ())
        return found

    def ask(self, asked: Asked) -> Answer:  # noqa: C901, PLR0912 - a line an operation
        """Perform the operation and return its answer."""
        match asked:
            case PutTopic():
                return self._put_topic(asked)
            case PutFlow():
                return self._put_flow(asked)
            case SetFlow():
                self.put_in_force(asked.rule)
                return "changed", 1
            case SetKey():
                return self._set_key(asked)
            case DeleteTopic():
                gone = self.topics.pop((asked.tenant, asked.name.lower()), None)
                if gone is not None and gone["per_key"] is not None:
                    self._spread((asked.tenant, asked.name.lower()), None, asked.shards)
                return self._gone(gone, asked, "topic.delete", asked.name.lower())
            case PauseQueue():
                return self._pause(asked)
            case ResumeQueue():
                gone = self.pauses.pop((asked.tenant, asked.queue.lower()), None)
                return self._gone(gone, asked, "queue.resume", asked.queue.lower())
            case RotateWebhookKey():
                return self._rotate(asked)
            case Subscribe():
                return self._subscribe(asked)
            case RenewSubscription():
                return self._renew(asked)
            case Unsubscribe():
                gone = self.subscriptions.pop((asked.tenant, asked.id), None)
                return "changed", int(gone is not None)
            case Delivered():
                return self._delivered(asked)
            case Undelivered():
                return self._undelivered(asked)
            case Replay():
                return self._replay(asked)
            case Swept():
                return self._swept(asked)
            case RelaysTaken():
                return self._relays_taken(asked)
            case Record():
                self.put_on_record(asked, asked.action, asked.target, asked.detail)
                return "changed", 1

    def tell(self, delivery: Fields, body: Fields) -> None:
        """Add a new delivery and the result that it reports."""
        name = delivery["tenant"], delivery["id"]
        self.deliveries[name] = delivery
        self.bodies[name] = body

    def sweep(
        self, tenant: str, task_id: str, uploads: Iterable[str], *, delay_ms: int = 0
    ) -> None:
        """Add sweeps for artifact sets."""
        for upload in uploads:
            self.sweeps[tenant, f"{task_id}.{upload}"] = {
                "tenant": tenant,
                "id": f"{task_id}.{upload}",
                "task_id": task_id,
                "upload": upload,
                "due_ms": self.now_ms + delay_ms,
                "attempts": 0,
            }

    def link(self, name: str) -> Fields:
        """Return how far relays to or from another shard have come, to be changed in place."""
        return self.links.setdefault(
            ("", name), {"tenant": "", "id": name, "number": 0, "recalled_ms": 0}
        )

    def send(self, relay: Fields) -> None:
        """Add a relay; one of the same name is gone. Its number is drawn: see `learn_number`."""
        name = relay["tenant"], relay["id"]
        self.relays[name] = relay | {"taken_ms": 0, "expires_ms": 0, "created_ms": self.now_ms}
        self.unnumbered.append(name)

    def learn_number(self, name: Name, number: int) -> None:
        """Note the number of a new relay, which must be larger than any before it."""
        assert number > self._last_number
        self.relays[name]["number"] = self._last_number = number

    def tally(self, tenant: str) -> None:
        """Count a tenant's schedules, and its keys that have rules of their own."""
        for of, items in (("schedules", self.schedules), ("keyrules", self.key_rules)):
            count = sum(owner == tenant for owner, _ in items)
            self.tallies.pop((tenant, of), None)
            if count:
                self.tallies[tenant, of] = {"tenant": tenant, "id": of, "count": count}

    def lapse(self, most: int, lanes: list[tuple[int, str, Name]]) -> int:
        """Delete expired items, the oldest first, and note which `lanes` are; return how many."""
        ended = [
            (item["expires_ms"], kind, name)
            for kind, items in self.kinds.items()
            for name, item in items.items()
            if 0 < item.get("expires_ms", 0) <= self.now_ms
        ]
        ended += lanes
        ended.sort()
        for _, kind, name in ended[:most]:
            if kind == "flow":
                self.due_flows.append(name)
                continue
            if kind == "lane":
                self.due_lanes.append(name)
                continue
            del self.kinds[kind][name]
            if kind == "hook":
                del self.bodies[name]
        return len(ended[:most])

    def put_on_record(self, asked: Any, action: str, target: str, detail: str = "") -> None:
        """Add an audit record of an operator's action."""
        audit_id = f"{10**15 - self.now_ms:015d}-{asked.request}"
        self.audits[asked.tenant, audit_id] = {
            "tenant": asked.tenant,
            "id": audit_id,
            "at_ms": self.now_ms,
            "actor": asked.by,
            "action": action,
            "target": target,
            "detail": detail,
            "request": asked.request,
            "expires_ms": self.now_ms + AUDIT_RETENTION_MS,
            "index": 0,
        }

    def put_ids_on_record(self, asked: Any, action: str, ids: tuple[str, ...]) -> None:
        """Add an audit record of an operator's action on several targets."""
        detail = f"{len(ids)} on one shard" if len(ids) > 1 else ""
        self.put_on_record(asked, action, ids[0], detail)

    def learn_rule(self, seq: int) -> None:
        """Note the number of a new rule, which must be larger than any before it."""
        assert seq > self._last_number
        self._last_number = seq

    def put_in_force(self, rule: FlowRule) -> None:
        """Put a rule of keys in force, unless it or a newer one is."""
        name = rule.tenant, rule.queue
        if rule.seq > self.flows.get(name, {"seq": 0})["seq"]:
            self.flows[name] = {
                "tenant": rule.tenant,
                "id": rule.queue,
                "seq": rule.seq,
                "per_key": rule.per_key,
                "walked": "",
                "expires_ms": self.now_ms,
                "per_queue": None,
                "pinned": "",
                "limit": "",
            }

    def _set_key(self, asked: SetKey) -> Answer:
        name = asked.tenant, f"{asked.queue}@{_digest(asked.key)}"
        had = self.key_rules.pop(name, {"own": None})
        if asked.own is not None:
            self.key_rules[name] = {
                "tenant": asked.tenant,
                "id": name[1],
                "key": asked.key,
                "own": asked.own,
                "updated_ms": self.now_ms,
                "pinned": "",
            }
        if had["own"] == asked.own:
            if asked.own is not None:
                self.key_rules[name] = had
            return "changed", 1
        self.tally(asked.tenant)
        action = "key.delete" if asked.own is None else "key.put"
        self.put_on_record(asked, action, asked.queue, asked.key)
        return "changed", 1

    def _put_flow(self, asked: PutFlow) -> Answer:
        name = asked.topic.tenant, asked.topic.name.lower()
        is_new = name not in self.topics
        left = self.flows.get(name, {"per_key": None, "seq": 0})
        had = left["per_key"] if is_new else self.topics[name]["per_key"]
        answer = self._put_topic(asked.topic, per_key=asked.per_key)
        if is_new:
            self.topics[name]["rule_seq"] = left["seq"]
        if had != asked.per_key:
            self.topics[name]["rule_seq"] = self._last_number
            self._spread(name, asked.per_key, asked.shards)
        return answer

    def _spread(self, name: Name, per_key: PerKey | None, shards: int) -> None:
        tenant, queue = name
        seq = self._last_number
        home = home_shard(tenant, shards)
        self.put_in_force(FlowRule(tenant, queue, seq, per_key, home))
        cause = "flow:" + _digest(queue)
        for shard in range(shards):
            if shard != home:
                rule = FlowRule(tenant, queue, seq, per_key, shard)
                relay = {"tenant": tenant, "id": f"{cause}.{seq}.{shard}", "task_id": cause}
                self.send({**relay, "effect": rule, "to": shard})

    def _put_topic(self, asked: PutTopic, *, per_key: PerKey | Same | None = SAME) -> Answer:
        queue = asked.name.lower()
        policy: Fields = {
            "name": asked.name,
            "priority_tiers": asked.priority_tiers,
            "max_attempts": asked.max_attempts,
            "dead_letter": asked.dead_letter.lower(),
            "retention_s": asked.retention_s,
            "max_consumers": asked.max_consumers,
            "weight": asked.weight,
            "handling": asked.handling,
        }
        found = self.topics.get((asked.tenant, queue))
        had = (found or {"per_key": None})["per_key"]
        policy["per_key"] = had if isinstance(per_key, Same) else per_key
        if found is not None and {field: found[field] for field in policy} == policy:
            made = found["version"] == 1 and found["request"] == asked.request
            return "topic", asked.name, found["version"], made
        topic: Fields = {
            "tenant": asked.tenant,
            "id": queue,
            "version": 1 if found is None else found["version"] + 1,
            "created_ms": self.now_ms if found is None else found["created_ms"],
            "updated_ms": self.now_ms,
            "request": asked.request,
            "rule_seq": 0 if found is None else found["rule_seq"],
            "per_queue": None,
            "pinned": "",
            "limit": "",
        }
        self.topics[asked.tenant, queue] = topic | policy
        self.put_on_record(asked, "topic.put", queue, f"version {topic['version']}")
        return "topic", asked.name, topic["version"], found is None

    def _pause(self, asked: PauseQueue) -> Answer:
        queue = asked.queue.lower()
        found = self.pauses.get((asked.tenant, queue))
        if found is not None:
            return "changed", int(found["request"] == asked.request)
        self.pauses[asked.tenant, queue] = {
            "tenant": asked.tenant,
            "id": queue,
            "by": asked.by,
            "since_ms": self.now_ms,
            "request": asked.request,
        }
        self.put_on_record(asked, "queue.pause", queue)
        return "changed", 1

    def _rotate(self, asked: RotateWebhookKey) -> Answer:
        name = asked.tenant, "callbacks"
        found = self.webhook_keys.get(name)
        if found is None or found["request"] != asked.request:
            self.webhook_keys[name] = {
                "tenant": asked.tenant,
                "id": "callbacks",
                "version": 2 if found is None else found["version"] + 1,
                "previous_until_ms": self.now_ms + asked.overlap_ms,
                "rotated_ms": self.now_ms,
                "request": asked.request,
            }
            overlap = f"the previous key signs for {asked.overlap_ms // 1000} s more"
            self.put_on_record(asked, "webhook-key.rotate", "callbacks", overlap)
        return "changed", 1

    def _gone(self, gone: Fields | None, asked: Any, action: str, target: str) -> Answer:
        if gone is None:
            return "changed", 0
        self.put_on_record(asked, action, target)
        return "changed", 1

    def _subscribe(self, asked: Subscribe) -> Answer:
        name = asked.tenant, asked.id
        if name not in self.subscriptions:
            self.subscriptions[name] = {
                "tenant": asked.tenant,
                "id": asked.id,
                "worker": asked.worker,
                "callback_url": asked.callback_url,
                "event_types": asked.event_types,
                "mode": asked.mode,
                "group_id": asked.group_id,
                "ttl_ms": asked.ttl_ms,
                "min_interval_ms": asked.min_interval_ms,
                "created_ms": self.now_ms,
                "expires_ms": self.now_ms + asked.ttl_ms,
            }
        return "subscribed", asked.id, self.subscriptions[name]["expires_ms"]

    def _renew(self, asked: RenewSubscription) -> Answer:
        found = self.subscriptions.get((asked.tenant, asked.id))
        if found is None or found["expires_ms"] <= self.now_ms:
            return "rejected", "not-found"
        ttl_ms = asked.ttl_ms or found["ttl_ms"]
        found["ttl_ms"] = ttl_ms
        found["expires_ms"] = self.now_ms + ttl_ms
        return "subscribed", asked.id, self.now_ms + ttl_ms

    def _delivered(self, asked: Delivered) -> Answer:
        found = self.deliveries.get((asked.tenant, asked.id))
        if found is None or found["died_ms"]:
            return "changed", 0
        del self.deliveries[asked.tenant, asked.id]
        del self.bodies[asked.tenant, asked.id]
        return "changed", 1

    def _undelivered(self, asked: Undelivered) -> Answer:
        found = self.deliveries.get((asked.tenant, asked.id))
        if found is None or found["died_ms"] or found["attempts"] != asked.attempt - 1:
            return "changed", 0
        end_ms = found["since_ms"] + DELIVERY_AGE_MAX_MS
        wait_ms = asked.deferred_ms
        if not asked.deferred_ms:
            found["attempts"] = asked.attempt
            found["error"] = asked.error
            grown_ms = min(DELIVERY_BASE_MS * 2 ** (asked.attempt - 1), DELIVERY_MAX_MS)
            wait_ms = max(grown_ms, asked.wait_ms)
        worn_out = not asked.deferred_ms and asked.attempt == DELIVERY_ATTEMPTS_MAX
        if self.now_ms < end_ms and not worn_out:
            found["due_ms"] = min(self.now_ms + wait_ms, end_ms)
            return "changed", 1
        found["due_ms"] = 0
        found["died_ms"] = self.now_ms
        found["expires_ms"] = self.now_ms + DLQ_RETENTION_MS
        if not worn_out:
            last = f"at last: {found['error']}" if found["attempts"] else "and not tried"
            found["error"] = f"not accepted within 0 s, {last}"
        return "changed", 1

    def _replay(self, asked: Replay) -> Answer:
        meant = [
            found
            for delivery_id in dict.fromkeys(asked.ids)
            if (found := self.deliveries.get((asked.tenant, delivery_id))) is not None
        ]
        done = [found for found in meant if found["replay"] == asked.request]
        dead = [found for found in meant if found not in done and found["died_ms"]]
        for found in dead:
            found |= {"attempts": 0, "due_ms": self.now_ms, "died_ms": 0, "expires_ms": 0}
            found |= {"replay": asked.request, "since_ms": self.now_ms}
        if dead:
            self.put_ids_on_record(asked, "delivery.replay", asked.ids)
        return "changed", len(done) + len(dead)

    def _relays_taken(self, asked: RelaysTaken) -> Answer:
        for tenant, relay_id, number in asked.relays:
            found = self.relays.get((tenant, relay_id))
            if found is not None and found["number"] == number and not found["taken_ms"]:
                found |= {"taken_ms": self.now_ms, "expires_ms": self.now_ms + RELAY_KEPT_MS}
        taken = self.links.get(("", f"to.{asked.to}"), {"number": 0})["number"]
        if asked.number > taken:
            self.link(f"to.{asked.to}")["number"] = asked.number
        return "changed", len(asked.relays)

    def _swept(self, asked: Swept) -> Answer:
        found = self.sweeps.get((asked.tenant, asked.id))
        if found is None or found["attempts"] != asked.attempt - 1:
            return "changed", 0
        if asked.failed:
            found["attempts"] = asked.attempt
            found["due_ms"] = self.now_ms + SWEEP_RETRY_MS
        else:
            del self.sweeps[asked.tenant, asked.id]
        return "changed", 1


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
