"""Groups of the client: its records have what the API shows, and a block seals its group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import fields as fields_of

from codeq_cluster.api.routes.groups import GroupView, MemberView
from codeq_cluster.client import Client, GroupMember, GroupRecord, NewTask, Refused
from codeq_cluster.testing.broker import LocalBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run a broker for this file alone."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def test_records_have_every_field_of_the_api() -> None:
    """A reader of a group misses nothing."""
    for record, view in ((GroupRecord, GroupView), (GroupMember, MemberView)):
        assert {each.encode_name for each in fields_of(view)} == {
            each.encode_name for each in fields_of(record)
        }


async def test_a_block_seals_its_group(broker: LocalBroker) -> None:
    """More tasks than one request takes are added, and one with a key joins once."""
    async with broker.client() as client:
        keyed = NewTask("member", 0, idempotency_key="once")
        async with client.group("async", then=NewTask("then", {}), then_if="succeeded") as group:
            await group.add(*(NewTask("member", n) for n in range(150)), keyed)
            await group.add(keyed)
        sealed = await client.group_record(group.id)
        with pytest.raises(Refused) as refused:
            await client.add_to_group(group.id, [keyed])

    assert ("SEALED", "succeeded", "then") == (sealed.status, sealed.then_if, sealed.then_command)
    assert 151 == sealed.total
    assert "group-sealed" == refused.value.code


async def test_a_block_that_raises_leaves_its_group_open(broker: LocalBroker) -> None:
    """The same program may go on with it."""
    async with broker.client() as client:
        with pytest.raises(ValueError, match="half-way"):
            await _half_way(client)
        left = await client.group_record("broken")
        async with client.group("broken", seal_within=60):
            pass
        again = await client.group_record("broken")

    assert ("OPEN", ("seal", "members")) == (left.status, left.waits_for)
    assert ("SEALED", 1) == (again.status, again.total)


def test_groups_need_no_event_loop(broker: LocalBroker) -> None:
    """The synchronous client has the same calls."""
    with broker.sync_client() as client:
        with client.group("sync", then=NewTask("then", {}), on_failure="cancel") as group:
            group.add(NewTask("member", 1), NewTask("member", 2))
        page = client.group_results(group.id, limit=1)
        listed = client.groups(limit=1)
        cancelled = client.cancel_group(group.id)

    assert ["LIVE"] == [each.status for each in page.members]
    assert page.cursor
    assert (["sync"], True) == ([each.id for each in listed.groups], bool(listed.cursor))
    assert ("CANCELLING", 2) == (cancelled.status, cancelled.live)


async def _half_way(client: Client) -> None:
    async with client.group("broken", seal_within=60) as group:
        await group.add(NewTask("member", 1))
        raise ValueError("half-way")
