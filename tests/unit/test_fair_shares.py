"""Room for something on a node is shared by a rule that always leaves some of it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.errors import Overloaded
from codeq_cluster.fair_shares import FairShares, NestedShares


def _fill(shares: FairShares, holder: str) -> int:
    while shares.may_take(holder):
        shares.take(holder)
    return shares.taken(holder)


def test_one_holder_gets_half() -> None:
    """A holder that is alone leaves as much as it has."""
    assert 32 == _fill(FairShares(64, name="the room"), "a")


def test_a_single_unit_is_open_to_every_holder() -> None:
    """The smallest room serves one holder after the other."""
    shares = FairShares(1, name="the room")
    with shares.one("a"), pytest.raises(Overloaded, match="the room"):
        shares.take("b")

    shares.take("b")

    assert 0 == shares.free


@given(others=st.integers(1, 5), total=st.integers(64, 4096))
def test_a_newcomer_finds_room_beside_greedy_holders(others: int, total: int) -> None:
    """Greedy holders, one after the other, leave a unit."""
    shares = FairShares(total, name="the room")
    for holder in range(others):
        _fill(shares, str(holder))

    shares.take("newcomer")

    assert 1 == shares.taken("newcomer")


def test_greedy_holders_settle_at_equal_parts() -> None:
    """As units come back, six holders and a newcomer find a seventh each."""
    shares = FairShares(70, name="the room")
    holders = [str(number) for number in range(6)]
    for holder in holders:
        _fill(shares, holder)
    for _ in range(70):
        for holder in holders:
            if shares.taken(holder):
                shares.give_back(holder)
            _fill(shares, holder)

    assert [10] * 6 == [shares.taken(holder) for holder in holders]
    assert 10 == shares.free


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.booleans()), max_size=60
    )
)
def test_what_is_taken_and_what_is_free_make_the_total(
    steps: list[tuple[str, int, bool]],
) -> None:
    """No sequence of takes and returns loses or makes a unit."""
    shares = FairShares(50, name="the room")
    for holder, amount, take in steps:
        if take and shares.may_take(holder, amount):
            shares.take(holder, amount)
        elif not take:
            shares.give_back(holder, min(amount, shares.taken(holder)))

        assert 50 == shares.free + sum(map(shares.taken, "abc"))
        assert shares.free >= 0


async def test_a_waiting_holder_gets_what_is_given_back() -> None:
    """Those who wait look again after each return, and only one of them gets a single unit."""
    shares = FairShares(1, name="the room")
    order: list[str] = []

    async def use(holder: str) -> None:
        async with shares.one_in_time(holder):
            assert 0 == shares.free
            order.append(holder)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(holder) for holder in "abcd"))

    assert sorted(order) == list("abcd")
    assert 1 == shares.free


def test_a_user_gets_a_quarter_and_leaves_a_share_to_its_tenant_and_to_others() -> None:
    """Units given back leave nothing behind."""
    shares = NestedShares(40, name="the room")

    def taken(stack: ExitStack, tenant: str, user: str) -> int:
        for count in range(41):
            try:
                stack.enter_context(shares.one(tenant, user))
            except Overloaded:
                return count
        raise AssertionError("there is no bound")

    for _ in range(2):
        with ExitStack() as stack:
            greedy = [taken(stack, "a", user) for user in ("one", "two", "three")]

            assert [10, 5, 2] == greedy
            assert taken(stack, "b", "one") > 0
        assert not shares._users
