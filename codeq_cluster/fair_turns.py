"""Fair turns: work in progress on one event loop is bounded, and holders take turns to begin more.

An event loop has no shares of its own: whoever has more requests in progress gets more of it. So
work begins only while there is room for it. Where work waits for room, its holders take turns,
however much of it each has, and within a holder's turns its members do. A holder that is alone may
have all the room; beside others it has at most half, so there is always room for one more.

The room is about the loop's time, as the seats of Kubernetes' API priority and fairness are about a
server's. While the loop is punctual, work that takes long waits for something else, such as a
leader that is being elected, and its room is given on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic

from msgspec import Struct

from codeq_cluster.errors import Overloaded

# Holders whose names begin so take turns like all others, but are nobody's neighbours: nobody has
# less of the room, or rests, because of them. They themselves have at most half at any time.
GUEST = "@"

Task = Hashable  # What work is known by, such as the task that does it.

# Others count for this long after they last began something.
_OTHERS_S = 1.0
# While work waits, the loop looks this often for room that can be given on.
_LOOK_S = 0.02
# The loop is punctual if a look comes no later than this.
_PUNCTUAL_S = 0.005
# Room is given on after so long for each of its units if the loop is punctual, and after the longer
# time in any case.
_GIVEN_ON_S = 0.1
_GIVEN_ON_S_MAX = 2.0
# Work of so many units or more keeps others waiting in pieces that cannot be interrupted. Beside
# others its holder rests for so many times as long as it took; for more if it took half the room.
_HEAVY = 8
_RESTS, _RESTS_OF_HALF = 1, 4
_REST_S_MAX = 2.0


@dataclass(slots=True)
class _Waiter:
    """Work that waits for its turn."""

    task: Task
    units: int
    begun: asyncio.Future[None]


class _Line:
    """The work of one holder that waits; empty lines are false."""

    def __init__(self) -> None:
        # By member in the order of their turns, then by task in the order in which they came.
        self._members: OrderedDict[str, OrderedDict[Task, _Waiter]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._members)

    def add(self, member: str, waiter: _Waiter) -> None:
        """Add work after that of its member."""
        self._members.setdefault(member, OrderedDict())[waiter.task] = waiter

    def first(self) -> tuple[str, _Waiter]:
        """Return the member whose turn it is, and its next work."""
        member, waiters = next(iter(self._members.items()))
        return member, next(iter(waiters.values()))

    def served(self, member: str) -> None:
        """Note that a member had its turn: its next one comes after those of the others."""
        self._members.move_to_end(member)

    def leave(self, member: str, task: Task) -> None:
        """Remove work, if it is there."""
        waiters = self._members.get(member)
        if waiters is not None:
            waiters.pop(task, None)
            if not waiters:
                del self._members[member]


class _Work(Struct, gc=False):
    """Work in progress.

    Attributes:
        since_s: When it began, or was looked at if it is not heavy; 0 before.
    """

    holder: str
    units: int
    since_s: float = 0.0


class FairTurns:
    """The room for work on one loop; belongs to that loop.

    Args:
        units: In progress at once. Work begins while any unit is free, so the last one may take
            more than there are.
        name: The room's name in refusals, as in "the room for requests".
        now_s: Monotonic seconds.

    Attributes:
        free: Units; below zero when the last work took more than were free.
        waiting: Work that waits for its turn.
    """

    def __init__(self, units: int, *, name: str, now_s: Callable[[], float] = monotonic) -> None:
        assert units >= 1
        self._units = self.free = units
        self.waiting = 0
        self._name = name
        self._now_s = now_s
        self._share = max(1, units // 2)
        self._work: dict[Task, _Work] = {}
        self._taken: dict[str, int] = {}
        self._lines: OrderedDict[str, _Line] = OrderedDict()  # In the order of their turns.
        self._last = ""
        self._others_until_s = 0.0
        self._look: asyncio.TimerHandle | None = None

    @property
    def in_progress(self) -> int:
        """Return the units that are taken."""
        return self._units - self.free

    def begin(self, task: Task, holder: str, units: int) -> bool:
        """Begin work at once; return False if it must wait for its turn.

        Args:
            task: Ends the work with `end`; has none in progress.
            holder: Whose work it is.
            units: What it takes, at least 1; beyond half of the room it takes that half.
        """
        if holder != self._last and not holder.startswith(GUEST):
            if self._last:
                self._others_until_s = self._now_s() + _OTHERS_S
            self._last = holder
        taken = self._taken
        own = taken.get(holder, 0)
        if self._lines or self.free <= 0 or units >= _HEAVY or own + units > self._share:
            return not self._lines and self._begin(task, holder, units)
        # As `_begin` does, without a call.
        self.free -= units
        taken[holder] = own + units
        self._work[task] = _Work(holder, units)
        return True

    def add(self, task: Task, units: int) -> None:
        """Note that work which has just begun takes more, up to half of the room."""
        work = self._work.get(task)
        if work is None:
            return
        units = min(units, self._share - work.units)
        work.units += units
        work.since_s = self._now_s()
        self._taken[work.holder] += units
        self.free -= units

    async def turn(
        self, task: Task, holder: str, units: int, *, member: str, within_s: float
    ) -> float:
        """Wait until the work may begin, after `begin` has refused; return how long that took.

        The caller bounds the number of those who wait.

        Args:
            task: As for `begin`.
            holder: As for `begin`.
            units: As for `begin`.
            member: Whose work it is within the holder.
            within_s: How long it may wait.

        Raises:
            Overloaded: Its turn did not come in time.
        """
        loop = asyncio.get_running_loop()
        waiter, since_s = _Waiter(task, units, loop.create_future()), self._now_s()
        self._lines.setdefault(holder, _Line()).add(member, waiter)
        self.waiting += 1
        if self._look is None:
            self._look_later(loop)
        # Those who wait longer may have their share, and this one not.
        self._go_on()
        try:
            async with asyncio.timeout(within_s):
                await waiter.begun
        except TimeoutError as late:
            raise Overloaded(self._name) from late
        finally:
            self.waiting -= 1
            self._leave(holder, member, task)
        return self._now_s() - since_s

    def end(self, task: Task) -> None:
        """Give a task's room back, if it has any; work that waits may begin."""
        work = self._work.pop(task, None)
        if work is None:
            return
        holder, units, taken = work.holder, work.units, self._taken
        self.free += units
        if units >= _HEAVY:
            self._give_back_rested(work)
        elif taken[holder] > units:
            taken[holder] -= units
        else:
            del taken[holder]
        if self._lines:
            self._go_on()

    def _give_back_rested(self, work: _Work) -> None:
        now_s = self._now_s()
        if now_s <= self._others_until_s:
            times = _RESTS if work.units < self._share else _RESTS_OF_HALF
            rest_s = min(times * (now_s - work.since_s), _REST_S_MAX)
            asyncio.get_running_loop().call_later(rest_s, self._give_back, work)
        else:
            self._give_back(work)

    def _give_back(self, work: _Work) -> None:
        self._taken[work.holder] -= work.units
        if not self._taken[work.holder]:
            del self._taken[work.holder]
        if self._lines:
            self._go_on()

    def _begin(self, task: Task, holder: str, units: int) -> bool:
        own, share = self._taken.get(holder, 0), self._share
        units = min(units, share)
        if self.free <= 0 or (own and own + units > share and self._has_others(holder)):
            return False
        self.free -= units
        self._taken[holder] = own + units
        self._work[task] = _Work(holder, units, self._now_s() if units >= _HEAVY else 0.0)
        return True

    def _has_others(self, holder: str) -> bool:
        return holder.startswith(GUEST) or self._now_s() <= self._others_until_s

    def _go_on(self) -> None:
        """Let work begin, one of each holder in turn, while there is room."""
        lines, refused = self._lines, 0
        while self.free > 0 and refused < len(lines):
            holder, line = next(iter(lines.items()))
            member, waiter = line.first()
            if waiter.begun.done():
                self._leave(holder, member, waiter.task)  # It gives up in this moment.
                continue
            lines.move_to_end(holder)
            if self._begin(waiter.task, holder, waiter.units):
                line.served(member)
                self._leave(holder, member, waiter.task)
                waiter.begun.set_result(None)
                refused = 0
            else:
                refused += 1

    def _leave(self, holder: str, member: str, task: Task) -> None:
        """Remove work from those that wait, if it is still there."""
        line = self._lines.get(holder)
        if line is not None:
            line.leave(member, task)
            if not line:
                del self._lines[holder]

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = self._now_s() + _LOOK_S
        self._look = loop.call_later(_LOOK_S, self._look_for_room, loop, due_s)

    def _look_for_room(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        """Give room on that is not about the loop's time; look again while work waits."""
        now_s = self._now_s()
        punctual = now_s - due_s <= _PUNCTUAL_S
        for task, work in list(self._work.items()):
            work.since_s = work.since_s or now_s
            own_s = _GIVEN_ON_S * work.units if punctual else _GIVEN_ON_S_MAX
            if now_s - work.since_s > min(own_s, _GIVEN_ON_S_MAX):
                self.end(task)
        self._look = None
        if self._lines:
            self._go_on()
        if self._lines:
            self._look_later(loop)
