"""Gate: a limit of tasks that are counted together, and what it remembers of those it let go.

They are those of one queue, or of all queues that share a limit. All of them are on one shard, so
one log decides about them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.core.bounds import Instant, Number, Owner, Scope, Seq
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.stored_item import Place, StoredItem

IN_PROGRESS_MAX = 1_000_000  # The largest bound that a rule may set.


class PerQueue(Struct, frozen=True, array_like=True, kw_only=True):
    """The rule of all tasks of a queue, or of the queues that share a limit, together.

    Attributes:
        max_running: Tasks in progress at once; 0 for any number.
        rate: How often tasks may be claimed; None for no limit.
    """

    max_running: int = 0
    rate: Rate | None = None

    @property
    def is_sound(self) -> bool:
        """Whether a broker could have taken every value."""
        in_bounds = 0 <= self.max_running <= IN_PROGRESS_MAX
        return in_bounds and (self.rate is None or self.rate.is_sound)


def _sound_or_none(value: object) -> str:
    assert value is None or isinstance(value, PerQueue)
    return "" if value is None or value.is_sound else "must be a rule within its bounds"


PerQueueOrNone = Annotated[PerQueue | None, _sound_or_none]
SoundPerQueue = Annotated[PerQueue, _sound_or_none]


def running_max(rule: PerQueue | None, consumers_max: int) -> int:
    """Return the smaller bound of a queue's tasks in progress; 0 for none."""
    bounds = (rule.max_running if rule is not None else 0, consumers_max)
    return min(filter(None, bounds), default=0)


class Gate(StoredItem, frozen=True, array_like=True, tag="gate", kw_only=True):
    """What the rate of a queue or a limit has spent, and until when a worker holds it.

    It exists until those tokens are back and the hold is over. A restore forgets it.

    Attributes:
        id: The queue, or the limit's scope.
        spent_us: The instant until which tokens are spent, in microseconds of the log's clock.
        opens_ms: When a token comes, while there is none; until then nothing is claimed. 0 while
            there is one.
        tokens: How many it had when it opened, at most the burst; so many claims may go at once.
        expires_ms: When it opens, or, while it is open, when all tokens are back.
        held_until_ms: Until when a worker has asked that nothing of it goes; 0 if none has.
    """

    place = Place.ORIGIN
    is_in_memory = True
    is_restored = False

    tenant: Owner
    id: Scope
    spent_us: Seq
    opens_ms: Instant = 0
    tokens: Number = 0
    expires_ms: Instant = 0
    held_until_ms: Instant = 0

    @property
    def shut_until_ms(self) -> int:
        """Return until when nothing is claimed; 0 while the gate is open."""
        return max(self.opens_ms, self.held_until_ms)

    def shut(self, opens_ms: int) -> Gate:
        """Return it without a token until then."""
        return replace(self, opens_ms=opens_ms, tokens=0, expires_ms=opens_ms)

    def held(self, until_ms: int) -> Gate:
        """Return it shut until then, or longer if that was asked before or no token comes."""
        after = replace(self, held_until_ms=max(self.held_until_ms, until_ms), tokens=0)
        return replace(after, expires_ms=after.shut_until_ms)

    def spent(self, rate: Rate, cost: int, *, now_ms: int) -> Gate:
        """Return it after a claim; if that took the last token, it is shut."""
        spent_us = rate.spent_us(self.spent_us, cost, now_ms=now_ms)
        after = replace(self, spent_us=spent_us, opens_ms=0, tokens=0, held_until_ms=0)
        next_ms = rate.free_ms(spent_us, 1)
        return after.shut(next_ms) if next_ms > now_ms else replace(after, expires_ms=after.back_ms)

    def opened(self, rate: Rate | None, *, now_ms: int) -> Gate | None:
        """Return it once its instant has come, or its rule has changed; None if nothing is left.

        Under a slower rule it may lack a token at once; the next claim finds that out. No more than
        the rule's own burst stays spent of another rule's tokens. A hold outlasts another rule.
        """
        after, tokens = replace(self, spent_us=0, opens_ms=0), 0
        if rate is not None and self.back_ms > now_ms:
            spent_us = min(self.spent_us, rate.spent_us(0, rate.burst, now_ms=now_ms))
            tokens = max(1, rate.tokens(spent_us, now_ms=now_ms))
            after = replace(after, spent_us=spent_us)
        if self.held_until_ms > now_ms:
            return replace(after, tokens=0, expires_ms=self.held_until_ms)
        after = replace(after, tokens=tokens, held_until_ms=0, expires_ms=after.back_ms)
        return after if tokens else None

    @property
    def back_ms(self) -> int:
        """Return when all tokens are back, milliseconds."""
        return -(-self.spent_us // 1000)
