"""The lanes of the model: after each operation, who of a key may run and who must wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b

from codeq_cluster.core.lane import PerKey

from .model_items import Fields, Name
from .model_task import Item

CHANGES_MAX = 48  # Of the walks of one operation.

_Key = tuple[str, str, str]  # Tenant, queue and key.
_Was = dict[str, tuple[str, bool, int]]  # By id: place, whether it kept its place, attempts.


def digest(key: str) -> str:
    """Return the name of a key in ids of rows."""
    return blake2b(key.encode(), digest_size=16).hexdigest()


class Lanes:
    """The rules of keys, and what they make of the tasks.

    Args:
        items: All tasks by id.
        rules: The rules in force, as items.
        rank: Gives a task the next place in the ready order.
    """

    def __init__(
        self, items: dict[str, Item], rules: dict[Name, Fields], rank: Callable[[Item], None]
    ) -> None:
        self._items = items
        self._rank = rank
        self.rules = rules
        self._was: _Was = {}
        self._left = CHANGES_MAX
        self._rows: list[_Key] = []
        self._keys: dict[str, _Key] = {}

    def rule(self, tenant: str, queue: str) -> PerKey | None:
        """Return the rule of a queue's keys."""
        found: PerKey | None = self.rules.get((tenant, queue), {}).get("per_key")
        return found

    def rows(self) -> dict[Name, Fields]:
        """Return the row of each key that has work or is stopped."""
        rows: dict[Name, Fields] = {}
        for key in {_key(item) for item in self._items.values() if item.lane}:
            tenant, queue, lane = key
            own = self._of(key)
            row = {
                "tenant": tenant,
                "id": f"{queue}@{digest(lane)}",
                "key": lane,
                "running": sum(item.place == "leased" for item in own),
                "ready": sum(item.place == "ready" for item in own),
                "kept": sum(_kept(item) for item in own),
                "held": sum(item.place == "held" for item in own),
                "stopped_by": next((item.id for item in own if _stops(item)), ""),
            }
            if any(row[each] for each in ("running", "ready", "kept", "held", "stopped_by")):
                rows[tenant, str(row["id"])] = row
        return rows

    def stopper(self, item: Item) -> str:
        """Return the dead letter that stops the key of a task, or ""."""
        rule = self.rule(item.tenant, item.queue)
        return self._stopped_by(_key(item), rule) if rule is not None else ""

    def before(self) -> None:
        """Note the tasks as they are before an operation."""
        self._left = CHANGES_MAX
        self._was = {i.id: (i.place, i.keeps, i.attempts) for i in self._items.values() if i.lane}
        self._rows = [
            (tenant, id_.split("@")[0], row["key"]) for (tenant, id_), row in self.rows().items()
        ]
        self._keys = {i.id: _key(i) for i in self._items.values() if i.lane}

    def after(self) -> set[_Key]:
        """Let those wait who must, and those go who may; return the keys whose tasks changed."""
        now = {i.id: (i.place, i.keeps, i.attempts) for i in self._items.values() if i.lane}
        changed = [each for each in {**self._was, **now} if self._was.get(each) != now.get(each)]
        keys = {self._keys.get(each) or _key(self._items[each]) for each in changed}
        for key in sorted(keys):
            self._mark(key)
            self._arrange(key)
        return keys

    def walk(self, name: Name, changed: set[_Key]) -> None:
        """Let the lanes of a queue follow its rule, up to one that this operation has changed."""
        flow = self.rules[name]
        if self._left <= 0:
            return
        lanes = [key for key in self._rows if key[:2] == name]
        for key in sorted(lanes, key=lambda each: digest(each[2])):
            if digest(key[2]) <= flow["walked"]:
                continue
            if key in changed:
                return
            self._left -= self._follow(key, self._left)
            if self._left <= 0:
                return
            flow["walked"] = digest(key[2])
        flow |= {"walked": "", "expires_ms": 0}

    def _of(self, key: _Key) -> list[Item]:
        return [item for item in self._items.values() if item.lane and _key(item) == key]

    def _stopped_by(self, key: _Key, rule: PerKey) -> str:
        if rule.when_dead != "stop":
            return ""
        return next((item.id for item in self._of(key) if _stops(item)), "")

    def _mark(self, key: _Key) -> None:
        """Note who keeps a place, and who has stopped the key by dying."""
        rule = self.rule(*key[:2])
        for item in sorted(self._of(key), key=lambda each: each.ended):
            was = self._was.get(item.id, ("", False, 0))[0]
            if was == "leased" and item.place == "delayed":
                item.keeps = rule is not None and rule.on_retry == "hold"
            if was != "dead" and item.place == "dead":
                stopped = any(_stops(other) for other in self._of(key) if other is not item)
                item.stops = rule is not None and rule.when_dead == "stop" and not stopped
            if item.place not in ("dead", ""):
                item.stops = False

    def _arrange(self, key: _Key) -> None:
        rule = self.rule(*key[:2])
        if rule is None:
            return
        own = self._of(key)
        stopped = bool(self._stopped_by(key, rule))
        new = [i for i in own if i.place == "ready" and self._place_before(i) != "ready"]
        returned = [item for item in new if self._keeps_place(item, rule)]
        arrived = [item for item in new if item not in returned]
        front = {item.id for item in arrived if self._place_before(item) == "dead"}
        taken = sum(i.place in ("leased", "ready") or _kept(i) for i in own) - len(arrived)
        returned.sort(key=_by_rank)
        while returned and taken > rule.max_running:
            front.add(returned[-1].id)
            arrived.append(returned.pop())
            taken -= 1
        unclaimed = [item for item in own if item.place == "ready" and item not in arrived]
        places = min(1 - len(unclaimed), rule.max_running - taken)
        if stopped:
            places = 0
        held = [item for item in own if item.place == "held" and self._place_before(item) == "held"]
        line = sorted(
            [*arrived, *held], key=lambda i: (-i.priority, i.id not in front, i.order, i.id)
        )
        for item in line[: max(0, places)]:
            if item in held:
                self._admit(item)
            else:
                arrived.remove(item)
        arrived.sort(key=lambda i: (-i.priority, i.id not in front, i.order))
        if rule.order == "priority" and not stopped and arrived:
            weak = sorted((item for item in unclaimed if item not in new), key=_by_rank)[:1]
            weak = [i for i in weak if not (rule.on_retry == "hold" and i.attempts)]
            if weak and weak[0].priority < arrived[0].priority:
                weak[0].place = "held"
                del arrived[0]
        for item in reversed(arrived):
            ahead = [i.order for i in own if i.place == "held" and i.priority == item.priority]
            if item.id in front and ahead:
                item.order = min(item.order, min(ahead) - 1)
            item.place = "held"

    def _follow(self, key: _Key, most: int) -> int:
        """Bring one lane to what its rule says; return how many tasks changed."""
        rule = self.rule(*key[:2])
        own = self._of(key)
        ready = sorted((item for item in own if item.place == "ready"), key=_by_rank)
        held = sorted((item for item in own if item.place == "held"), key=_by_rank)
        if rule is None:
            places = len(ready) + len(held)
        else:
            running = sum(item.place == "leased" or _kept(item) for item in own)
            places = max(0, min(1, rule.max_running - running))
            if self._stopped_by(key, rule):
                places = 0
        goes = held[: max(0, places - len(ready))][:most]
        waits = ready[places:][:most]
        for item in goes:
            self._admit(item)
        for item in waits:
            item.place = "held"
        return len(goes) + len(waits)

    def _admit(self, item: Item) -> None:
        item.place = "ready"
        self._rank(item)

    def _place_before(self, item: Item) -> str:
        return self._was.get(item.id, ("", False, 0))[0]

    def _keeps_place(self, item: Item, rule: PerKey) -> bool:
        place, kept, attempts = self._was.get(item.id, ("", False, 0))
        had = place == "leased" or (place == "delayed" and kept)
        return had and (rule.on_retry == "hold" or item.attempts < attempts)


def _key(item: Item) -> _Key:
    return item.tenant, item.queue, item.lane


def _kept(item: Item) -> bool:
    return item.place == "delayed" and item.keeps


def _stops(item: Item) -> bool:
    return item.place == "dead" and item.stops


def _by_rank(item: Item) -> tuple[int, int, str]:
    return -item.priority, item.order, item.id


def waiting(items: Iterable[Item]) -> int:
    """Return how many of the tasks wait, for whatever."""
    return sum(item.place in ("ready", "delayed", "held") for item in items)
