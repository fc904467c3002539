"""Linearizability: the search agrees with trying every order."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_lite.checker.linearizability import linearizable
from jepsen_lite.history import Args, F, Out, Type
from jepsen_lite.operations import NEVER_NS, Op


def write(value: int, call: int, ret: int) -> Op:
    """Return a write of a register, as a create."""
    return _op(F.CREATE, value, call, ret)


def read(value: int, call: int, ret: int) -> Op:
    """Return a read of a register."""
    return _op(F.READ, value, call, ret)


def _op(f: F, value: int, call: int, ret: int) -> Op:
    return Op(
        i=0,
        done_i=0,
        p="",
        node="",
        f=f,
        type=Type.INFO if ret == NEVER_NS else Type.OK,
        call_ns=call,
        ret_ns=ret,
        done_ns=ret,
        args=Args(token=value),
        out=Out(),
    )


def step(state: int, op: Op) -> int | None:
    """Return a register's value after an operation."""
    if op.f is F.CREATE:
        return op.args.token
    return state if state == op.args.token else None


def tried(ops: list[Op]) -> bool:
    """Try every order of every choice of the unanswered operations."""
    sure = [op for op in ops if op.ret_ns != NEVER_NS]
    open_ = [op for op in ops if op.ret_ns == NEVER_NS]
    for count in range(len(open_) + 1):
        for chosen in itertools.combinations(open_, count):
            for order in itertools.permutations([*sure, *chosen]):
                if _explains(order):
                    return True
    return False


def _explains(order: tuple[Op, ...]) -> bool:
    state: int | None = 0
    for n, op in enumerate(order):
        if any(later.ret_ns < op.call_ns for later in order[n + 1 :]):
            return False
        state = step(state, op)
        if state is None:
            return False
    return True


SPANS = st.tuples(st.integers(0, 12), st.integers(1, 6), st.booleans(), st.integers(0, 2))


@st.composite
def stories(draw: st.DrawFn) -> list[Op]:
    """Return up to six operations on a register, with instants that all differ."""
    ops = []
    for n in range(draw(st.integers(1, 6))):
        begin, length, writes, value = draw(SPANS)
        call = begin * 100 + n
        lost = writes and draw(st.integers(0, 3)) == 0
        ret = NEVER_NS if lost else call + length * 100 + 50
        ops.append(write(value, call, ret) if writes else read(value, call, ret))
    return ops


@settings(max_examples=400, deadline=None)
@given(stories())
def test_the_search_agrees_with_trying_every_order(ops: list[Op]) -> None:
    """The search neither misses a violation nor invents one."""
    assert linearizable(ops, 0, step) is tried(ops)


def test_a_stale_read_has_no_place() -> None:
    """A read of a value overwritten before the read began cannot be explained."""
    assert linearizable([write(1, 0, 1), read(0, 2, 3)], 0, step) is False


def test_a_search_that_takes_too_long_is_given_up() -> None:
    """The verdict is then unknown, neither yes nor no."""
    ops = [write(n % 3, n, NEVER_NS) for n in range(40)] + [read(7, 50, 60)]

    assert linearizable(ops, 0, step, steps_max=1000) is None
