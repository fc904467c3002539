"""Group rows: the simulator notices a group that its members contradict."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.groups import Group, Member
from codeq_cluster.core.stored_item import ItemKind
from tests.simulator.group_rows import GroupFault, GroupRows

GROUP = Group(tenant="", id="g", generation=1, rows=1, live=1, created_ms=1, expires_ms=9)
MEMBER = Member(tenant="", id="g:t", task_id="t")
ENDED = replace(MEMBER, status="COMPLETED", ended_ms=2)


def _rows(group: Group, *members: Member) -> dict[bytes, bytes | None]:
    return {
        keyspace.item(kind, "", item.id): records.encode(item)
        for kind, item in (
            (ItemKind.GROUP, group),
            *((ItemKind.MEMBER, member) for member in members),
        )
    }


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (_rows(replace(GROUP, rows=2, live=2)), "says"),
        (_rows(GROUP, ENDED), "says"),
        (_rows(replace(GROUP, live=0, completed=1, sealed_ms=2), ENDED), "goes on"),
    ],
)
def test_a_group_that_its_members_contradict_is_noticed(
    rows: dict[bytes, bytes | None], fault: str
) -> None:
    """It counts a member that is not there, misses an end, or does not end with the last."""
    known = GroupRows()
    known.written(_rows(GROUP, MEMBER))

    with pytest.raises(GroupFault, match=fault):
        known.written(rows)


def test_a_member_ends_once() -> None:
    """Its status does not change any more."""
    known = GroupRows()
    known.written(_rows(replace(GROUP, live=0, completed=1), ENDED))

    with pytest.raises(GroupFault, match="was COMPLETED"):
        known.written(_rows(GROUP, replace(ENDED, status="FAILED")))


def test_rows_of_an_ended_group_may_go_some_at_a_time() -> None:
    """Its members are deleted before the group."""
    known = GroupRows()
    ended = replace(GROUP, live=0, completed=1, sealed_ms=2, ended_ms=3)
    known.written(_rows(ended, ENDED))
    gone: dict[bytes, bytes | None] = {keyspace.item(ItemKind.MEMBER, "", ENDED.id): None}

    known.written(_rows(ended) | gone)
