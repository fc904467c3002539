"""Membership: valid ones survive the log, and others are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.codec.membership import (
    MEMBERS_MAX,
    PAST_MAX,
    Member,
    Membership,
    data_of,
    decode,
    encode,
    incarnation_of,
)

MEMBERS = st.builds(
    Member,
    id=st.text(min_size=1, max_size=64),
    data=st.integers(0, 2**31 - 1),
    voter=st.booleans(),
    link=st.text(max_size=40),
    http=st.text(max_size=40),
    level=st.integers(1, 9),
)
THREE = Membership(members=(Member(id="n1", data=7), Member(id="n2"), Member(id="n3", voter=False)))


@given(
    st.lists(MEMBERS, unique_by=lambda member: member.id, max_size=9),
    st.integers(1, 9),
    st.lists(st.integers(1, 2**31 - 1), max_size=5),
)
def test_what_is_written_is_read(members: list[Member], level: int, past: list[int]) -> None:
    """Every possible group reads back, including the empty one."""
    membership = Membership(members=tuple(members), level=level, past=tuple(past))

    if members and not membership.voters:
        with pytest.raises(ValueError, match="without a voter"):
            decode(encode(membership))
    else:
        assert membership == decode(encode(membership))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x02" + encode(THREE)[1:],
        encode(THREE)[:-1],
        encode(THREE) + b"\x00",
        encode(Membership(members=(Member(id="a"), Member(id="a")))),
        encode(Membership(members=(Member(id=""),))),
        encode(Membership(members=tuple(Member(id=f"n{n}") for n in range(MEMBERS_MAX + 1)))),
        encode(Membership(members=THREE.members, past=tuple(range(PAST_MAX + 1)))),
    ],
    ids=["nothing", "version", "cut short", "more", "twice", "nameless", "too many", "recoveries"],
)
def test_an_impossible_membership_is_refused(payload: bytes) -> None:
    """Damaged payloads, other versions and impossible groups are refused."""
    with pytest.raises(ValueError, match=r".+"):
        decode(payload)


def test_a_member_takes_the_place_of_the_one_of_its_id() -> None:
    """The other members keep their places, because the order says who should lead."""
    changed = THREE.with_member(Member(id="n1", data=8)).with_member(Member(id="n4"))

    assert ["n1", "n2", "n3", "n4"] == [member.id for member in changed.members]
    assert Member(id="n1", data=8) == changed.of("n1")
    assert ("n1", "n2", "n4") == changed.voters
    assert ("n2", "n4") == changed.without("n1").voters


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 2))
def test_an_incarnation_names_its_data(data: int, opened: int) -> None:
    """An incarnation also grows with every opening of its data."""
    assert data == data_of(incarnation_of(data, opened))
    assert incarnation_of(data, opened) < incarnation_of(data, opened + 1)
