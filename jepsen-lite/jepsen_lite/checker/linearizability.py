"""Linearizability: whether a model allows an order of operations that agrees with real time.

Wing and Gong's search as described by Horn and Kroening, with a doubly linked list of calls and
returns, and with Lowe's cache of configurations that led nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from jepsen_lite.operations import NEVER_NS, Op

S = TypeVar("S", bound=Hashable)

# A task with some dozens of operations takes some hundreds of steps; beyond the bound the verdict
# is unknown.
STEPS_MAX = 200_000


class _Line:
    """Calls and returns in order of time; both are removed when an operation is placed."""

    def __init__(self, ops: Sequence[Op]) -> None:
        moments = [(op.call_ns, 0, n) for n, op in enumerate(ops)]
        moments += [(op.ret_ns, 1, n) for n, op in enumerate(ops) if op.ret_ns != NEVER_NS]
        moments.sort()
        self.op_at = [n for _, _, n in moments]
        self.returns = [bool(kind) for _, kind, _ in moments]
        self.end = len(moments)
        self._return_of: dict[int, int] = {
            n: spot for spot, (_, kind, n) in enumerate(moments) if kind
        }
        # One sentinel past the end stands for both ends, so that no case is special.
        self._after: list[int] = [*range(1, self.end + 1), 0]
        self._before: list[int] = [self.end, *range(self.end)]

    @property
    def first(self) -> int:
        return self._after[self.end]

    def after(self, spot: int) -> int:
        return self._after[spot]

    def take(self, spot: int) -> bool:
        """Remove a call, and its return if there is one; return whether there is."""
        self._unlink(spot)
        back = self._return_of.get(self.op_at[spot])
        if back is None:
            return False
        self._unlink(back)
        return True

    def put_back(self, spot: int) -> bool:
        """Undo `take`, in reverse order."""
        back = self._return_of.get(self.op_at[spot])
        if back is not None:
            self._link(back)
        self._link(spot)
        return back is not None

    def _unlink(self, spot: int) -> None:
        before, after = self._before[spot], self._after[spot]
        self._after[before], self._before[after] = after, before

    def _link(self, spot: int) -> None:
        before, after = self._before[spot], self._after[spot]
        self._after[before] = self._before[after] = spot


def linearizable(
    ops: Sequence[Op],
    start: S,
    step: Callable[[S, Op], S | None],
    *,
    steps_max: int = STEPS_MAX,
) -> bool | None:
    """Return whether `ops` have an order that `step` allows.

    Args:
        ops: In any order; one that never returned may be left out of the result.
        start: The model's first state.
        step: The state after an operation, or None if it cannot happen.
        steps_max: The bound on the search.

    Returns:
        None if the search was given up.
    """
    line = _Line(ops)
    missing = sum(op.ret_ns != NEVER_NS for op in ops)
    state: S = start
    done = 0
    seen: set[tuple[int, S]] = set()
    path: list[tuple[int, int, S]] = []
    spot = line.first
    for _ in range(steps_max):
        if not missing:
            return True
        if spot == line.end or line.returns[spot]:
            # This operation has returned, so it must be placed, and nothing fits before it.
            if not path:
                return False
            spot, done, state = path.pop()
            missing += line.put_back(spot)
            spot = line.after(spot)
            continue
        after = step(state, ops[line.op_at[spot]])
        placed = done | 1 << line.op_at[spot]
        if after is None or (placed, after) in seen:
            spot = line.after(spot)
            continue
        seen.add((placed, after))
        path.append((spot, done, state))
        done, state = placed, after
        missing -= line.take(spot)
        spot = line.first
    return None
