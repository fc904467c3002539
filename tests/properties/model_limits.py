"""The limits of the model: it watches tasks, counts them, and says who may go and who must."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.lane import OwnRule, PerKey
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.task import State, Task

Key = tuple[str, str]  # A queue and the key of its tasks.


class Scope:
    """What the tasks that are counted together have done, and what they may do.

    Attributes:
        spent_us: Until when the tokens of the rate are spent, microseconds.
        held_ms: Until when a worker holds it.
    """

    def __init__(self) -> None:
        self.rule: PerQueue | None = None
        self.spent_us = 0
        self.held_ms = 0

    def put(self, rule: PerQueue | None, now_ms: int) -> None:
        """Follow another rule: of spent tokens it remembers its own burst, and none without one."""
        self.rule = rule
        if rule is None:
            self.held_ms = 0
        rate = rule.rate if rule is not None else None
        if rate is None:
            self.spent_us = 0
        else:
            self.spent_us = min(self.spent_us, now_ms * 1000 + rate.burst * _token_us(rate))

    def lets(self, running: int, now_ms: int) -> bool:
        """Return whether one task more may go."""
        if self.rule is None:
            return True
        if self.held_ms > now_ms or 0 < self.rule.max_running <= running:
            return False
        rate = self.rule.rate
        # One token has come once no more than the burst less one are spent in advance.
        return rate is None or (self.spent_us <= now_ms * 1000 + (rate.burst - 1) * _token_us(rate))

    def took(self, now_ms: int) -> None:
        """Spend a token."""
        if self.rule is not None and self.rule.rate is not None:
            self.spent_us = max(self.spent_us, now_ms * 1000) + _token_us(self.rule.rate)


@dataclass
class Life:
    """A task as it was seen last.

    Attributes:
        turn: When it could run for the first time; 0 before that, and once it has had its turn.
        had_turn: It could run before: what comes back goes before others, or behind them.
        keeps: It is away, and nobody gets its place of the key.
    """

    task: Task
    turn: int = 0
    had_turn: bool = False
    keeps: bool = False

    @property
    def key(self) -> Key:
        """Return the queue and the key."""
        more = self.task.more
        return self.task.command, more.key if more is not None else ""

    @property
    def can_run(self) -> bool:
        """Return whether it waits for nothing but its turn."""
        state = self.task.state
        return state is State.READY or (state is State.HELD and not self.task.waits_for_others)


class Watch:
    """The tasks of some queues of one tenant, whose names are in lower case, with their limits.

    Attributes:
        shares: The queues that share the limit.
        per_key: The rule of each queue's keys.
        of_key: The rules of single keys.
        spent: Of each key, what its rate has spent.
        held_ms: Of each key, until when a worker holds it.
        unsure: Keys whose rule went while they were held: they may be free earlier.
        stopper: Of each key, the dead letter that stops it.
    """

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.lives: dict[str, Life] = {}
        self.own = {queue: Scope() for queue in queues}
        self.limit = Scope()
        self.shares: set[str] = set()
        self.per_key: dict[str, PerKey | None] = dict.fromkeys(queues)
        self.of_key: dict[Key, OwnRule] = {}
        self.spent: dict[Key, Scope] = {}
        self.held_ms: dict[Key, int] = {}
        self.unsure: set[Key] = set()
        self.stopper: dict[Key, str] = {}
        self.settling: set[str] = set()  # Queues of which not all keys follow the rule yet.
        self._turn = 0

    def rule(self, key: Key) -> PerKey | None:
        """Return the rule that a key follows, if it is one."""
        rule, own = self.per_key[key[0]], self.of_key.get(key)
        if rule is None or not key[1]:
            return None
        most = (own.max_running if own is not None else 0) or rule.max_running
        rate = (own.rate if own is not None else None) or rule.rate
        return PerKey(
            max_running=most,
            order=rule.order,
            on_retry=rule.on_retry,
            when_dead=rule.when_dead,
            rate=rate,
        )

    def rests(self, key: Key, now_ms: int) -> bool:
        """Return whether nothing of a key goes."""
        own = self.of_key.get(key)
        return self.held_ms.get(key, 0) > now_ms or (own is not None and own.paused)

    def is_stopped(self, key: Key) -> bool:
        """Return whether a dead letter stops a key."""
        rule = self.rule(key)
        return rule is not None and rule.when_dead == "stop" and key in self.stopper

    def obey(self, queue: str, key: str = "") -> None:
        """Note that another rule of a queue's keys, or of one key, is in force."""
        for life in self.lives.values():
            if life.key[0] == queue and key in ("", life.key[1]):
                life.turn = 0
        for each in [each for each in self.spent if each[0] == queue and key in ("", each[1])]:
            del self.spent[each]
        if self.per_key[queue] is None:
            self.unsure |= {each for each in self.held_ms if each[0] == queue}

    def begin(self) -> None:
        """Begin a decision: what becomes able to run in one has no order."""
        self._turn += 1

    def see(self, before: Task | None, after: Task | None, *, keeps_key: bool, now_ms: int) -> None:
        """Watch one change of a task, and judge it.

        Args:
            before: None for a new task.
            after: None for one that is deleted.
            keeps_key: If it waits for a signal, nobody gets its place of the key.
            now_ms: The log's clock.
        """
        if after is None:
            assert before is not None
            assert before.state.terminal, "lost"
            self._lets_go(self.lives.pop(before.id))
            return
        assert (after.id in self.lives) == (before is not None)
        life = self.lives.setdefault(after.id, Life(after))
        was = before.state if before is not None else None
        if after.state is State.LEASED and was is not State.LEASED:
            self._claimed(life, now_ms)
        if after.state is State.READY and was in (None, State.HELD):
            assert not self.is_stopped(life.key), "a stopped key goes on"
        if before is not None and before.priority != after.priority:
            life.turn = 0
        if was is State.DEAD and after.state is not State.DEAD:
            self._lets_go(life)
            life.had_turn = True  # It goes to the front.
        life.task = after
        self._mark(life, was, keeps_key=keeps_key)
        if not life.can_run:
            life.turn = 0
        elif not life.had_turn:
            life.had_turn, life.turn = True, self._turn

    def _mark(self, life: Life, was: State | None, *, keeps_key: bool) -> None:
        """Note who keeps a place of a key, and who stops it."""
        rule, state = self.rule(life.key), life.task.state
        if state is not State.DELAYED:
            life.keeps = False
        elif was is State.LEASED:
            retries = rule is not None and rule.on_retry == "hold"
            life.keeps = keeps_key if life.task.parked_at else retries
        is_dead = state is State.DEAD and was is not State.DEAD
        if is_dead and rule is not None and rule.when_dead == "stop":
            self.stopper.setdefault(life.key, life.task.id)

    def lets(self, queue: str, now_ms: int) -> bool:
        """Return whether the limits of a queue let one task more go."""
        leased = [each.key[0] for each in self.lives.values() if each.task.state is State.LEASED]
        if not self.own[queue].lets(leased.count(queue), now_ms):
            return False
        if queue not in self.shares:
            return True
        return self.limit.lets(sum(each in self.shares for each in leased), now_ms)

    def stuck(self, now_ms: int, *, with_rates: bool) -> Iterator[str]:
        """Yield the tasks that are held although there is room for one of their key.

        Args:
            now_ms: The log's clock, at which nothing is due any more.
            with_rates: The tokens of every key are back.
        """
        held = {each.key for each in self.lives.values() if each.task.state is State.HELD}
        for key in held:
            waits = [each for each in self._of(key) if each.can_run]
            names = [each.task.id for each in waits if each.task.state is State.HELD]
            rule, own = self.rule(key), self.of_key.get(key)
            if rule is None:
                yield from names
            elif not (self.rests(key, now_ms) or self.is_stopped(key)):
                if rule.rate is not None and not with_rates:
                    continue
                ready = len(waits) - len(names)
                most = own.weight if own is not None and rule.rate is None else 1
                if ready < most and ready + self._taken(key) < rule.max_running:
                    yield from names

    def _claimed(self, life: Life, now_ms: int) -> None:
        """Judge a claim of a task, and count it."""
        queue, key = life.key[0], life.key
        assert self.lets(queue, now_ms), "more than a limit of the queue allows"
        for scope in (self.own[queue], *([self.limit] if queue in self.shares else [])):
            scope.took(now_ms)
        rule = self.rule(key)
        if rule is not None and queue not in self.settling:
            assert self._taken(key) < rule.max_running, "more of a key than its rule allows"
            assert key in self.unsure or not self.rests(key, now_ms), "a key goes that is held"
            if rule.rate is not None:
                scope = self.spent.setdefault(key, Scope())
                scope.rule = PerQueue(rate=rule.rate)
                assert scope.lets(0, now_ms), "faster than the rate of a key allows"
                scope.took(now_ms)
        if life.turn and key[1]:
            ahead = [each for each in self._of(key) if self._goes_before(each, life, rule, now_ms)]
            assert not ahead, f"{life.task.id} goes before {[each.task.id for each in ahead]}"

    def _goes_before(self, each: Life, life: Life, rule: PerKey | None, now_ms: int) -> bool:
        """Return whether a task of the same key has to be claimed before another one."""
        if not each.can_run or not each.turn or 0 < each.task.expires_ms <= now_ms:
            return False
        if each.task.priority == life.task.priority:
            return each.turn < life.turn
        # A task that has a higher priority takes the place of one that nobody has claimed.
        if rule is None or rule.rate is not None or rule.when_dead == "stop":
            return False
        return rule.order == "priority" and each.task.priority > life.task.priority

    def _taken(self, key: Key) -> int:
        return sum(each.keeps or each.task.state is State.LEASED for each in self._of(key))

    def _of(self, key: Key) -> list[Life]:
        return [each for each in self.lives.values() if each.key == key]

    def _lets_go(self, life: Life) -> None:
        if self.stopper.get(life.key) == life.task.id:
            del self.stopper[life.key]


def _token_us(rate: Rate) -> int:
    """Return the microseconds that add a token, rounded up."""
    return -(-rate.per_s * 1_000_000 // rate.count)
