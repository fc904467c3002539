"""The lanes of the model: after each operation, who of a key may run and who must wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from hashlib import blake2b

from msgspec.structs import replace

from codeq_cluster.core.lane import OwnRule, PerKey

from .model_items import Fields, Name
from .model_task import Item

WORK = ("running", "ready", "kept", "held", "stopped_by")
CHANGES_MAX = 48  # Of the walks of one operation.
PAUSE_MS = 50  # After a walk that has changed so many.
LAST = "f" * 32  # Where a walk stays that waits for the row's deletion.
DAY_MS = 24 * 3600 * 1000
BACK_MAX = 16  # Ready tasks of a held key that go back in one step.

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
        own: The rules of single keys, as items.
        rank: Gives a task the next place in the ready order.
        clock: Returns the log's clock, milliseconds.
    """

    def __init__(
        self,
        items: dict[str, Item],
        rules: dict[Name, Fields],
        own: dict[Name, Fields],
        rank: Callable[[Item], None],
        clock: Callable[[], int],
    ) -> None:
        self._items = items
        self._rank = rank
        self._clock = clock
        self.rules = rules
        self._own = own
        self._own_was: dict[_Key, OwnRule] = {}
        self._strict: set[_Key] = set()  # Keys of which those beyond the rule are held again.
        self._was: _Was = {}
        self._left = CHANGES_MAX
        self._pause_ms = PAUSE_MS
        self._rows: list[_Key] = []
        self._spent: dict[_Key, int] = {}  # Until when the tokens of a key are spent, microseconds.
        self._until: dict[_Key, int] = {}  # Until when a key lacks the tokens for its next task.
        self._pause: dict[_Key, int] = {}  # Until when a worker has held a key.
        self._again: dict[_Key, int] = {}  # When a key of which more are ready was looked at last.
        self._keys: dict[str, _Key] = {}

    def rule(self, tenant: str, queue: str) -> PerKey | None:
        """Return the rule of a queue's keys."""
        found: PerKey | None = self.rules.get((tenant, queue), {}).get("per_key")
        return found

    def own(self, key: _Key) -> OwnRule | None:
        """Return the rule that a key has of its own."""
        return self._owns().get(key)

    def is_paused(self, item: Item) -> bool:
        """Return whether an admin has paused the key of a task."""
        own = self.own(_key(item))
        return own is not None and own.paused

    def _owns(self) -> dict[_Key, OwnRule]:
        return {
            (tenant, name.split("@")[0], rule["key"]): rule["own"]
            for (tenant, name), rule in self._own.items()
        }

    def _rule(self, key: _Key) -> PerKey | None:
        rule, own = self.rule(*key[:2]), self.own(key)
        if rule is None or own is None:
            return rule
        return replace(
            rule, max_running=own.max_running or rule.max_running, rate=own.rate or rule.rate
        )

    def _rests(self, key: _Key) -> bool:
        own = self.own(key)
        return key in self._pause or (own is not None and own.paused)

    def _most_ready(self, key: _Key, rule: PerKey) -> int:
        own = self.own(key)
        return own.weight if own is not None and rule.rate is None else 1

    def _places(self, key: _Key, rule: PerKey) -> int:
        """Return how many tasks of a key may be ready."""
        if self._stopped_by(key, rule) or self._rests(key):
            return 0
        running = sum(item.place == "leased" or _kept(item) for item in self._of(key))
        return max(0, min(self._most_ready(key, rule), rule.max_running - running))

    def _look_again(self, key: _Key, rule: PerKey) -> None:
        """Note that more tasks of a key are ready than may be, if they are to be held again."""
        self._again.pop(key, None)
        ready = sum(item.place == "ready" for item in self._of(key))
        if (key in self._strict or self._rests(key)) and ready > self._places(key, rule):
            self._again[key] = self._clock()

    def rows(self) -> dict[Name, Fields]:
        """Return the row of each key that has work or is stopped."""
        rows: dict[Name, Fields] = {}
        with_tasks = (_key(item) for item in self._items.values() if item.lane)
        for key in {*with_tasks, *self._spent, *self._pause, *self._owns()}:
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
                "spent_us": self._spent.get(key, 0),
                "expires_ms": self._until.get(key, 0),
                "held_until_ms": self._pause.get(key, 0),
                "own": self.own(key),
            }
            if self._rests(key):
                row["expires_ms"] = row["held_until_ms"]
            row["expires_ms"] = self._again.get(key, row["expires_ms"])
            if any(row[each] for each in WORK) or row["expires_ms"] or row["own"]:
                rows[tenant, str(row["id"])] = row
        return rows

    def stopper(self, item: Item) -> str:
        """Return the dead letter that stops the key of a task, or ""."""
        rule = self.rule(item.tenant, item.queue)
        return self._stopped_by(_key(item), rule) if rule is not None else ""

    def limited_until_ms(self, item: Item) -> int:
        """Return until when a held task waits for the rate of its key."""
        return self._until.get(_key(item), 0)

    def held_until_ms(self, item: Item) -> int:
        """Return until when a worker has held the key of a task."""
        return self._pause.get(_key(item), 0)

    def hold(self, item: Item, until_ms: int) -> None:
        """Let nothing of the key of a task go until then, or longer if that was asked before."""
        if until_ms > max(self._clock(), self._pause.get(_key(item), 0)):
            self._pause[_key(item)] = until_ms

    def due_rows(self, now_ms: int) -> list[tuple[int, Name]]:
        """Return the rows whose instants have come, with these."""
        rows = self.rows().items()
        return [(row["expires_ms"], name) for name, row in rows if 0 < row["expires_ms"] <= now_ms]

    def before(self, most: int) -> None:
        """Note the tasks as they are before an operation; its walks change at most so many."""
        self._own_was = self._owns()
        self._left = min(most, CHANGES_MAX)
        self._pause_ms = PAUSE_MS if most >= CHANGES_MAX else 0
        self._was = {i.id: (i.place, i.keeps, i.attempts) for i in self._items.values() if i.lane}
        self._rows = [
            (tenant, id_.split("@")[0], row["key"]) for (tenant, id_), row in self.rows().items()
        ]
        self._keys = {i.id: _key(i) for i in self._items.values() if i.lane}

    def after(self, due: list[Name]) -> set[_Key]:
        """Let those wait who must, and those go who may; return the keys looked at.

        Args:
            due: The rows whose instants have come; it is emptied.
        """
        now = {i.id: (i.place, i.keeps, i.attempts) for i in self._items.values() if i.lane}
        changed = [each for each in {**self._was, **now} if self._was.get(each) != now.get(each)]
        keys = {self._keys.get(each) or _key(self._items[each]) for each in changed}
        own = self._owns()
        told = {key for key in {*own, *self._own_was} if own.get(key) != self._own_was.get(key)}
        woken = {key for key in self._rows if (key[0], f"{key[1]}@{digest(key[2])}") in due}
        self._strict = told | woken
        keys |= self._strict
        due.clear()
        for key in sorted(keys):
            self._mark(key)
            self._spend(key)
            self._arrange(key)
            self._forget(key)
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
                flow["expires_ms"] = self._clock()
                return
            self._left -= self._follow(key, self._left)
            if self._left <= 0:
                flow["expires_ms"] = self._clock() + self._pause_ms
                return
            flow["walked"] = digest(key[2])
        if flow["per_key"] is not None:
            flow |= {"walked": "", "expires_ms": 0}
        elif flow["walked"] == LAST:
            del self.rules[name]
        else:
            flow |= {"walked": LAST, "expires_ms": self._clock() + DAY_MS}

    def _of(self, key: _Key) -> list[Item]:
        return [item for item in self._items.values() if item.lane and _key(item) == key]

    def _stopped_by(self, key: _Key, rule: PerKey) -> str:
        if rule.when_dead != "stop":
            return ""
        return next((item.id for item in self._of(key) if _stops(item)), "")

    def _mark(self, key: _Key) -> None:
        """Note who keeps a place, and who has stopped the key by dying."""
        rule = self._rule(key)
        for item in sorted(self._of(key), key=lambda each: each.ended):
            was = self._was.get(item.id, ("", False, 0))[0]
            if was == "leased" and item.place == "delayed":
                item.keeps = rule is not None and rule.on_retry == "hold"
            if was != "dead" and item.place == "dead":
                stopped = any(_stops(other) for other in self._of(key) if other is not item)
                item.stops = rule is not None and rule.when_dead == "stop" and not stopped
            if item.place not in ("dead", ""):
                item.stops = False

    def _spend(self, key: _Key) -> None:
        rule = self._rule(key)
        for item in self._of(key):
            if rule is None or rule.rate is None:
                return
            if item.place == "leased" and self._place_before(item) == "ready":
                token_us = math.ceil(rule.rate.per_s * 1_000_000 / rule.rate.count)
                spent_us = max(self._spent.get(key, 0), self._clock() * 1000)
                self._spent[key] = spent_us + min(item.cost, rule.rate.burst) * token_us

    def _has_tokens(self, item: Item, rule: PerKey, *, waits: bool = True) -> bool:
        """Return whether its key has the tokens for a task; otherwise it may wait for them."""
        if rule.rate is None:
            return True
        token_us = math.ceil(rule.rate.per_s * 1_000_000 / rule.rate.count)
        cost = min(item.cost, rule.rate.burst)
        first_us = self._spent.get(_key(item), 0) - (rule.rate.burst - cost) * token_us
        first_ms = max(0, math.ceil(first_us / 1000))
        if first_ms > self._clock() and waits:
            self._until[_key(item)] = first_ms
        return first_ms <= self._clock()

    def _forget(self, key: _Key) -> None:
        """Remember a key without tasks until its tokens are back."""
        own = self._of(key)
        if self._rests(key):
            self._until.pop(key, None)
            return
        has_work = any(i.place in ("leased", "ready", "held") or _kept(i) or _stops(i) for i in own)
        if not has_work:
            self._until[key] = math.ceil(self._spent.get(key, 0) / 1000)
            if self._until[key] <= self._clock():
                self._spent.pop(key, None)
                del self._until[key]

    def _arrange(self, key: _Key) -> None:
        rule = self._rule(key)
        self._until.pop(key, None)
        self._end_pause(key)
        if rule is None:
            self._again.pop(key, None)
            return
        own = self._of(key)
        stopped = bool(self._stopped_by(key, rule)) or self._rests(key)
        new = [i for i in own if i.place == "ready" and self._place_before(i) != "ready"]
        returned = [item for item in new if self._keeps_place(item, rule)]
        arrived = [item for item in new if item not in returned]
        front = {item.id for item in arrived if self._place_before(item) == "dead"}
        taken = sum(i.place in ("leased", "ready") or _kept(i) for i in own) - len(arrived)
        taken -= self._give_up(returned, arrived, front, taken, rule)
        unclaimed = [item for item in own if item.place == "ready" and item not in arrived]
        places = min(self._most_ready(key, rule) - len(unclaimed), rule.max_running - taken)
        if stopped:
            places = 0
        held = [item for item in own if item.place == "held" and self._place_before(item) == "held"]
        line = sorted(
            [*arrived, *held], key=lambda i: (-i.priority, i.id not in front, i.order, i.id)
        )
        for item in line[: max(0, places)]:
            if not self._has_tokens(item, rule):
                break
            if item in held:
                self._admit(item)
            else:
                arrived.remove(item)
        self._hold_back(key, [item for item in unclaimed if item not in new], rule)
        arrived.sort(key=lambda i: (-i.priority, i.id not in front, i.order))
        if rule.order == "priority" and not stopped and arrived:
            old = [item for item in unclaimed if item not in new and item.place == "ready"]
            old = sorted(old, key=_by_rank)[: self._most_ready(key, rule)]
            self._swap(arrived, old[::-1], rule)
        for item in reversed(arrived):
            if item.id in front:
                self._to_the_front(item)
            item.place = "held"
        self._look_again(key, rule)

    def _hold_back(self, key: _Key, ready: list[Item], rule: PerKey) -> None:
        """Take the turns of those back that were ready and may not go any more."""
        if self._rests(key) or key in self._strict:
            places = self._places(key, rule)
            for item in reversed(sorted(ready, key=_by_rank)[places : places + BACK_MAX]):
                self._to_the_front(item)

    def _give_up(
        self,
        returned: list[Item],
        arrived: list[Item],
        front: set[str],
        taken: int,
        rule: PerKey,
    ) -> int:
        """Take the places of those that came back and may not keep them; return how many."""
        gives_all = rule.rate is not None or any(self._rests(_key(i)) for i in returned)
        beyond = len(returned) if gives_all else taken - rule.max_running
        gives = sorted(returned, key=_by_rank)[::-1][: max(0, beyond)]
        for item in gives:
            returned.remove(item)
            arrived.append(item)
            front.add(item.id)
        return len(gives)

    def _swap(self, arrived: list[Item], unclaimed: list[Item], rule: PerKey) -> None:
        """Let the first that arrived take the place of one with a lower priority."""
        if rule.on_retry == "hold":
            unclaimed = [item for item in unclaimed if not item.attempts]
        if not self._has_tokens(arrived[0], rule, waits=False):
            return
        for weak in unclaimed:
            if arrived and weak.priority < arrived[0].priority:
                self._to_the_front(weak)
                del arrived[0]

    def _to_the_front(self, item: Item) -> None:
        """Let one whose turn it was wait before all others of its priority."""
        own = self._of(_key(item))
        ahead = [i.order for i in own if i.place == "held" and i.priority == item.priority]
        item.order = min([item.order, *(order - 1 for order in ahead)])
        item.place = "held"

    def _follow(self, key: _Key, most: int) -> int:
        """Bring one lane to what its rule says; return how many tasks changed."""
        self._end_pause(key)
        rule = self._rule(key)
        own = self._of(key)
        ready = sorted((item for item in own if item.place == "ready"), key=_by_rank)
        held = sorted((item for item in own if item.place == "held"), key=_by_rank)
        places = len(ready) + len(held) if rule is None else self._places(key, rule)
        self._until.pop(key, None)
        room = max(0, places - len(ready))
        goes = held[:room][:most]
        if rule is not None and goes and not self._has_tokens(goes[0], rule):
            goes = []
        if rule is not None and not room and ready[:places]:
            places = places if self._has_tokens(ready[0], rule) else 0
        waits = ready[places:][:most]
        for item in goes:
            self._admit(item)
        for item in reversed(waits):
            self._to_the_front(item)
        self._again.pop(key, None)
        if rule is not None:
            self._look_again(key, rule)
        if self._rests(key):
            self._until.pop(key, None)
        return len(goes) + len(waits)

    def _end_pause(self, key: _Key) -> None:
        if self._pause.get(key, 0) <= self._clock() or self.rule(*key[:2]) is None:
            self._pause.pop(key, None)

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
