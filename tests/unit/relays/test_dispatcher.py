"""Dispatcher: relays reach the other shard once, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import pytest
import pytest_asyncio

from codeq_cluster.broker.background import Background
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core import relaying
from codeq_cluster.core.items import Aside
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Finish, Operation, Retry
from codeq_cluster.core.outcomes import Changed, Claimed, Outcome, Submitted
from codeq_cluster.core.relays import KEPT_MS, Relay, RelayLink, TakeRelays
from codeq_cluster.core.sharding import shard_of_key, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import NoLeader, OutcomeUnknown
from codeq_cluster.relays import dispatcher as dispatching
from codeq_cluster.relays.dispatcher import RelayDispatcher
from codeq_cluster.routing.router import Router
from tests.fakes.memory_store import MemoryShard
from tests.harness.waiting import until
from tests.unit.broker.conftest import (
    START_MS,
    Shard,
    TestClock,
    claim,
    create,
    make_shard,
    shards_of,
    submit,
)

SHARDS = 3
SECOND = with_shard("22222222-2222-2222-2222-222222222222", shards=SHARDS, wanted=0)
PARENT = with_shard("11111111-1111-1111-1111-111111111111", shards=SHARDS, wanted=0)
_NAMES = tuple(map("key-{}".format, range(1000)))
HERE = next(name for name in _NAMES if shard_of_key("acme", name, SHARDS) == 0)
KEYS, OTHERS = (
    [name for name in _NAMES if shard_of_key("acme", name, SHARDS) == shard] for shard in (1, 2)
)


class Crossing(Router):
    """A router whose calls to the other shard meet what the test says.

    Attributes:
        sent: The batches, by their numbers.
        fails: Called before each batch; may raise.
        loses: Answers to lose: the batch is done, and nobody hears of it.
        loses_of_relays: The same, but answers to empty batches come.
    """

    sent: list[tuple[int, ...]]
    fails: Callable[[int, TakeRelays], None]
    loses: int
    loses_of_relays: int = 0

    async def operate(
        self, shard: int, operations: Sequence[Operation], *, deadline: float
    ) -> list[Outcome]:
        """Send operations."""
        for each in operations:
            if isinstance(each, TakeRelays):
                self.sent.append(tuple(relayed.number for relayed in each.relays))
                self.fails(shard, each)
        outcomes = await super().operate(shard, operations, deadline=deadline)
        full = any(isinstance(each, TakeRelays) and each.relays for each in operations)
        if self.loses or (full and self.loses_of_relays):
            self.loses = max(0, self.loses - 1)
            self.loses_of_relays = max(0, self.loses_of_relays - 1)
            raise OutcomeUnknown("the answer is lost")
        return outcomes


@dataclass
class Trio:
    """Three shards that this node leads, and the relays from the first to the others."""

    here: Shard
    others: tuple[Shard, Shard]
    router: Crossing
    background: Background
    dispatcher: RelayDispatcher
    failed: list[Loop]

    async def finish(self, *keys: str, parent: str = PARENT, **fields: object) -> None:
        """End a task with follow-ups that have these keys."""
        await self.here.engine.operate([create(parent)])
        [claimed] = await self.here.engine.operate([claim(f"claim-{parent}")])
        assert isinstance(claimed, Claimed)
        following = tuple(
            Create(command="after", payload="{}", idempotency_key=key, fingerprint=key, **fields)  # type: ignore[arg-type]
            for key in keys
        )
        ended = submit(parent, token=claimed.tasks[0].lease_token)
        [outcome] = await self.here.engine.operate(
            [Finish(submit=ended, next=following, digest="d", shards=SHARDS)]
        )
        assert isinstance(outcome, Submitted)

    def keyed(self, key: str) -> str | None:
        """Return the id of the task that has a key, on the key's shard."""
        other = self.others[shard_of_key("acme", key, SHARDS) - 1]
        row = other.store.state.get(keyspace.idempotency("acme", key))
        return None if row is None else records.decode_key_row(row).task_id

    def relays(self) -> list[Relay]:
        """Return the relays that are kept."""
        start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.RELAY))
        found = [
            records.decode_item(value)
            for _, value in self.here.store.state.scan(start, end, 10_000)
        ]
        return [each for each in found if isinstance(each, Relay)]

    async def settled(self) -> None:
        """Wait until nothing is on its way."""

        async def empty() -> bool:
            return self.dispatcher.waiting == 0

        await until(empty, what="relays taken")


@pytest_asyncio.fixture
async def trio(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trio]:
    """Yield three led shards."""
    monkeypatch.setattr(dispatching, "PAUSE_S", 0.001)
    monkeypatch.setattr(dispatching, "PAUSE_S_MAX", 0.001)
    clock = TestClock()
    here, *others = shards = [
        make_shard(MemoryShard(), clock, number=number, shards=SHARDS) for number in range(SHARDS)
    ]
    for shard in shards:
        shard.log.term = 4
        shard.log.lead()
    router = shards_of(*shards, kind=Crossing)
    router.sent, router.fails, router.loses = [], lambda *_: None, 0
    background = Background()
    failed: list[Loop] = []
    dispatcher = RelayDispatcher(
        here.engine,
        here.store.state,
        router,
        background=background,
        failed=lambda: failed.append(Loop.RELAYS),
    )
    here.engine.on_rows(dispatcher.rows, keyspace.Family.FORWARD)
    here.engine.on_leader(dispatcher.look)
    yield Trio(here, (others[0], others[1]), router, background, dispatcher, failed)
    dispatcher.stop()
    await background.stop()
    for shard in shards:
        shard.engine.stop()


async def test_follow_ups_reach_the_other_shard_in_batches(trio: Trio) -> None:
    """A hundred of one result need two entries there; all are kept here for a while."""
    keys = KEYS[:100]
    await trio.finish(*keys)
    await trio.settled()

    assert None not in map(trio.keyed, keys)
    assert all(each.number > START_MS for each in trio.relays()), "no clock in the numbers"
    sent = [number for batch in trio.router.sent for number in batch]
    assert sorted(each.number for each in trio.relays()) == sent
    assert max(map(len, trio.router.sent)) == relaying.RELAYS_MAX
    assert {KEPT_MS} == {each.expires_ms - each.taken_ms for each in trio.relays()}


async def test_a_follow_up_costs_one_entry_here_and_two_more_elsewhere(trio: Trio) -> None:
    """The result's own; one that takes the relay, and one that notes that it is taken."""
    entries = [shard.seen.entries for shard in (trio.here, trio.others[0])]
    await trio.finish(HERE)
    alone = [len(each) for each in entries]
    await trio.finish(KEYS[0], parent=SECOND)
    await trio.settled()

    # Each result comes after a create and a claim.
    assert [3, 0] == alone
    assert [3 + 3 + 1, 1] == [len(each) for each in entries]


async def test_a_lost_answer_makes_nothing_twice(trio: Trio) -> None:
    """The batch is sent again, even after its task has ended and is gone."""
    trio.router.loses = 3
    await trio.finish(*KEYS[:2])
    await trio.settled()

    made = list(map(trio.keyed, KEYS[:2]))
    assert None not in made
    assert 2 == trio.others[0].engine.ready("acme", "after")
    assert len(trio.router.sent) > 3


async def test_a_relay_that_acts_although_nobody_hears_of_it_is_not_set_aside(trio: Trio) -> None:
    """However often its answer is lost: asked for nothing, the other shard says that it has it."""
    trio.router.loses_of_relays = 20
    await trio.finish(KEYS[0])
    await trio.settled()

    assert trio.keyed(KEYS[0])
    assert [] == trio.failed


async def test_a_shard_without_a_leader_gets_them_when_it_has_one(trio: Trio) -> None:
    """Nothing is given up, however often it fails."""
    left = [20]

    def fails(_: int, __: TakeRelays) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise NoLeader("none yet")

    trio.router.fails = fails
    await trio.finish(KEYS[0])
    await trio.settled()

    assert trio.keyed(KEYS[0])
    assert [] == trio.failed


async def test_the_next_leader_sends_what_was_left(trio: Trio) -> None:
    """Relays are rows: a leader that is gone leaves them to the one after it."""
    trio.dispatcher.stop()
    await trio.finish(*KEYS[:3])
    assert 3 == trio.dispatcher.waiting
    assert trio.keyed(KEYS[0]) is None
    successor = RelayDispatcher(
        trio.here.engine,
        trio.here.store.state,
        trio.router,
        background=trio.background,
        failed=lambda: None,
    )
    successor.look()
    await trio.settled()

    assert None not in map(trio.keyed, KEYS[:3])


async def test_a_relay_that_the_broker_fails_at_is_set_aside(trio: Trio) -> None:
    """Those behind it go on; retried, it is sent with a new number."""
    poisoned = [KEYS[1]]

    def fails(_: int, operation: TakeRelays) -> None:
        if any(each.effect.create.idempotency_key in poisoned for each in operation.relays):
            raise AssertionError("a bug of ours")

    trio.router.fails = fails
    await trio.finish(*KEYS[:3])

    async def passed() -> bool:
        return trio.keyed(KEYS[2]) is not None

    await until(passed, what="the relay behind it")
    [aside] = await _asides(trio)
    lacking = trio.keyed(KEYS[1])
    poisoned.clear()
    [outcome] = await trio.here.engine.operate(
        [Retry(request="r", tenant="acme", ids=(aside.id,), by="op")]
    )
    await trio.settled()

    assert ["acme", "AssertionError: a bug of ours"] == [aside.tenant, aside.reason]
    assert [Loop.RELAYS] == trio.failed
    assert lacking is None
    assert Changed(1) == outcome
    assert trio.keyed(KEYS[1])
    by_key = {each.effect.create.idempotency_key: each.number for each in trio.relays()}
    assert by_key[KEYS[1]] == max(by_key.values())
    assert [] == await _asides(trio)


async def _asides(trio: Trio) -> list[Aside]:
    async def found() -> tuple[list[Aside]]:
        start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.ASIDE))
        rows = trio.here.store.state.scan(start, end, 10)
        items = [records.decode_item(value) for _, value in rows]
        return ([each for each in items if isinstance(each, Aside)],)

    (asides,) = await until(found, what="what is set aside")
    return asides


async def test_relays_that_the_other_shard_has_lost_are_sent_again(trio: Trio) -> None:
    """As after a recovery from one node, whose log had a shorter end; new ones follow them."""
    await trio.finish(*KEYS[:3])
    await trio.settled()
    store = trio.others[0].store.state
    link = keyspace.item(ItemKind.RELAY_LINK, "", "from.0")
    first = min(each.number for each in trio.relays())
    lost = [keyspace.idempotency("acme", key) for key in KEYS[1:3]]
    tasks = [keyspace.task(str(trio.keyed(key))) for key in KEYS[1:3]]
    earlier = records.encode(RelayLink(id="from.0", number=first))
    store._put(link, earlier)
    for key in (*lost, *tasks):
        store._put(key, None)
    assert trio.keyed(KEYS[1]) is None
    await trio.finish(KEYS[3], parent=SECOND)
    await trio.settled()

    async def there() -> bool:
        return all(map(trio.keyed, KEYS[:4]))

    await until(there, what="what was lost")
    assert [] == trio.failed


async def test_a_shard_that_is_out_delays_no_other(trio: Trio) -> None:
    """Each shard has a line of its own."""
    out = [True]

    def fails(shard: int, _: TakeRelays) -> None:
        if out[0] and shard == 1:
            raise NoLeader("the shard is out")

    trio.router.fails = fails
    await trio.finish(KEYS[0], OTHERS[0])

    async def passed() -> bool:
        return trio.keyed(OTHERS[0]) is not None

    await until(passed, what="the other shard's relay")
    lacking = trio.keyed(KEYS[0])
    stalled_s = trio.dispatcher.stalled_s
    later_s = [trio.dispatcher.stalled_s]

    async def grown() -> bool:
        later_s[0] = trio.dispatcher.stalled_s
        return later_s[0] > stalled_s

    await until(grown, what="a later look")
    out[0] = False
    await trio.settled()

    async def rested() -> bool:
        return trio.dispatcher.stalled_s == 0

    await until(rested, what="an empty line")
    assert lacking is None
    assert trio.keyed(KEYS[0])
    assert later_s[0] > stalled_s > 0


async def test_a_line_that_moves_is_not_stalled(trio: Trio) -> None:
    """Each batch that the other shard has begins the count anew; a refused one does not."""
    looks: list[tuple[float, float, float]] = []
    time = asyncio.get_running_loop().time

    def fails(_: int, __: TakeRelays) -> None:
        looks.append((time(), trio.dispatcher.stalled_s, time()))
        if len(looks) == 2:
            raise NoLeader("for a moment")

    trio.router.fails = fails
    await trio.finish(*KEYS[: 2 * relaying.RELAYS_MAX])
    await trio.settled()

    (_, _, sent), (_, after_one_s, refused), (again, after_refusal_s, _), *_ = looks
    assert after_one_s < refused - sent
    assert after_refusal_s >= again - refused
