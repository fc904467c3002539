"""Quotas over real links: a tenant has one bucket, whichever nodes are asked."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from codeq_cluster.core.sharding import home_shard
from codeq_cluster.errors import LimitExceeded, NotLeader
from codeq_cluster.ratelimit.limiter import RateLimiter, RateLimits
from codeq_cluster.ratelimit.token_bucket import Scope
from codeq_cluster.ratelimit.token_lease import HOLD_NS
from codeq_cluster.settings import RateLimitSettings, RateSettings, TenantRateLimit

from .conftest import Node, Nodes, eventually, joined

SECOND_NS = 10**9
SHARDS = 4
HOME = home_shard("acme", SHARDS)
LOW = RateLimitSettings(producer=RateSettings(requests_per_minute=60, burst_size=30))
HIGH = RateLimitSettings(producer=RateSettings(requests_per_minute=60_000, burst_size=1_000))


@dataclass
class Shard:
    """A replica of one shard, whose leader the test sets."""

    leader: str | None = "n1"

    def on_leader(self, call: Callable[[], None]) -> None:
        """Keep no callback."""


@dataclass
class Clock:
    """A clock that a test moves."""

    now_ns: int = 0

    def __call__(self) -> int:
        """Return its instant."""
        return self.now_ns


@dataclass
class Limited:
    """A node that limits its callers.

    Attributes:
        calls: Calls that another node has answered.
        served: Calls that it has answered itself.
        refused: Scope and operation of every refusal.
        silent: Whether its peers' calls stay unanswered.
    """

    node: Node
    shards: list[Shard] = field(default_factory=lambda: [Shard() for _ in range(SHARDS)])
    calls: int = 0
    served: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    silent: bool = False
    quotas: RateLimiter | None = None

    async def take(self, cost: int = 1, *, tenant: str = "acme") -> bool:
        """Return whether a request for this many creates is admitted."""
        assert self.quotas is not None
        return not await self.quotas.wait_s(Scope.PRODUCER, "create_task", tenant, cost)

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Answer a peer, unless silent."""
        self.served += 1
        if self.silent:
            await asyncio.Event().wait()
        assert self.quotas is not None
        return await self.quotas.serve(peer, method, body, timeout_s)

    def answered(self, method: str, seconds: float) -> None:
        """Count a call."""
        assert "borrow" == method
        assert seconds >= 0
        self.calls += 1

    def led_by(self, leader: str | None) -> None:
        """Set the leader of every shard."""
        for shard in self.shards:
            shard.leader = leader


async def limited(
    nodes: Nodes, clock: Clock, settings: RateLimitSettings, *, owner_timeout_s: float = 30.0
) -> list[Limited]:
    """Return three nodes, of which the first leads every shard.

    Its peers wait for it longer than any busy machine takes. So they grant tokens without it only
    if a test wants that.
    """
    made = [Limited(node) for node in nodes.make("n1", "n2", "n3")]
    for each in made:
        each.node.serve = each.serve
        each.quotas = RateLimiter(
            node_id=each.node.id,
            nodes=lambda: 3,
            replicas=each.shards,
            calls=await each.node.start(),
            limits=RateLimits(settings),
            now_ns=clock,
            on_refused=lambda *what, each=each: each.refused.append(what),
            on_answered=each.answered,
            owner_timeout_s=owner_timeout_s,
        )
    await joined(*(each.node for each in made))
    return made


async def taken(limited: list[Limited], asks: int) -> int:
    """Return how many of the requests, sent to the nodes in turn, were admitted."""
    return sum([await node.take() for node, _ in zip(itertools.cycle(limited), range(asks))])


async def test_a_tenant_gets_the_burst_once_and_not_once_a_node(nodes: Nodes) -> None:
    """Any of the nodes may be asked; afterwards only the rate counts."""
    clock = Clock()
    made = await limited(nodes, clock, LOW)

    assert 30 == await taken(made, 60)
    clock.now_ns += 7 * SECOND_NS
    assert 7 == await taken(made, 60)


@pytest.mark.parametrize("settings", [LOW, HIGH], ids=["low", "high"])
async def test_requests_at_once_on_all_nodes_share_one_burst(
    nodes: Nodes, settings: RateLimitSettings
) -> None:
    """No token is granted twice, and none is withheld from a caller who asks again."""
    clock = Clock()
    made = await limited(nodes, clock, settings)
    burst = settings.producer.burst_size

    first = await asyncio.gather(*(node.take() for node in made for _ in range(burst)))
    rest = await asyncio.gather(*(node.take() for node in made for _ in range(burst)))

    assert burst == sum(first) + sum(rest)


async def test_many_requests_become_few_calls(nodes: Nodes) -> None:
    """A node takes a tenth of a second's rate in advance."""
    made = await limited(nodes, Clock(), HIGH)

    assert [True] * 300 == [await made[1].take() for _ in range(300)]
    assert 3 == made[1].calls


async def test_a_node_does_not_lease_a_small_burst_away_from_the_others(nodes: Nodes) -> None:
    """Most of the rest stays for the other nodes, however high the rate is."""
    made = await limited(
        nodes, Clock(), replace(HIGH, producer=replace(HIGH.producer, burst_size=12))
    )
    assert await made[1].take()

    assert [True] * 8 == [await made[2].take() for _ in range(8)]


async def test_requests_that_wait_for_one_call_share_its_answer(nodes: Nodes) -> None:
    """Waiting requests share the answer even at a rate too low for tokens in advance."""
    made = await limited(nodes, Clock(), LOW)

    assert [True] * 30 == await asyncio.gather(*(made[1].take() for _ in range(30)))
    assert made[1].calls <= 2


async def test_a_flood_of_refused_requests_costs_the_owner_nothing(nodes: Nodes) -> None:
    """A refusal is remembered until it could end, and counted every time."""
    clock = Clock()
    made = await limited(nodes, clock, LOW)
    assert await made[0].take(30)

    assert not any([await made[1].take() for _ in range(500)])
    assert 1 == made[1].calls
    assert [("producer", "create_task")] * 500 == made[1].refused

    clock.now_ns += SECOND_NS
    assert await made[1].take()


async def test_a_refusal_of_many_does_not_refuse_a_few(nodes: Nodes) -> None:
    """After a refusal, a smaller request is still asked for."""
    made = await limited(nodes, Clock(), LOW)
    assert await made[1].take(20)

    assert not await made[1].take(11)
    assert await made[1].take(10)
    assert not await made[1].take(1)


async def test_leased_tokens_that_are_not_used_are_dropped(nodes: Nodes) -> None:
    """A node must not keep leased tokens for later."""
    clock = Clock()
    made = await limited(nodes, clock, HIGH)
    assert await made[1].take()
    clock.now_ns += HOLD_NS

    assert await made[1].take()
    assert 2 == made[1].calls


async def test_a_refusal_says_when_to_come_again(nodes: Nodes) -> None:
    """The wait is in whole seconds, the same at the owner and elsewhere, asked or remembered."""
    made = await limited(nodes, Clock(), LOW)
    assert await made[0].take(30)

    for node in (made[0], made[1], made[1]):
        assert node.quotas is not None
        with pytest.raises(LimitExceeded) as refused:
            await node.quotas.spend(Scope.PRODUCER, "create_task", "acme", 5)
        assert 5 == refused.value.retry_after_s


@pytest.mark.parametrize("seed", range(5))
async def test_no_stretch_of_time_sees_more_than_burst_and_rate(nodes: Nodes, seed: int) -> None:
    """The bound holds over all nodes, exact to the token at a low rate with one owner."""
    clock, dice = Clock(), random.Random(seed)
    made = await limited(nodes, clock, LOW)
    let_by: list[tuple[int, int]] = []

    async def ask() -> None:
        cost = dice.randint(1, 8)
        if await dice.choice(made).take(cost):
            let_by.append((clock.now_ns, cost))

    for _ in range(150):
        clock.now_ns += dice.choice((0, 0, 10**8, SECOND_NS, 5 * SECOND_NS))
        await asyncio.gather(*(ask() for _ in range(dice.randint(1, 4))))

    for first, (begun_ns, _) in enumerate(let_by):
        total = 0
        for at_ns, cost in let_by[first:]:
            total += cost
            assert total * SECOND_NS <= 30 * SECOND_NS + at_ns - begun_ns
    assert sum(cost for _, cost in let_by) > 0.9 * (30 + clock.now_ns / SECOND_NS)


async def test_tenants_have_buckets_of_their_own(nodes: Nodes) -> None:
    """A tenant without tokens does not affect another tenant or scope."""
    made = await limited(
        nodes, Clock(), replace(LOW, worker=RateSettings(requests_per_minute=1, burst_size=1))
    )
    assert 30 == await taken(made, 60)
    quotas = made[1].quotas
    assert quotas is not None

    assert await made[1].take(30, tenant="other")
    assert 0 == await quotas.wait_s(Scope.WORKER, "claim", "acme")
    assert 60 == await quotas.wait_s(Scope.WORKER, "claim", "acme")


async def test_a_tenant_may_have_a_limit_of_its_own_or_none(nodes: Nodes) -> None:
    """The tenant's own limit replaces the general one."""
    own = [
        TenantRateLimit(tenant=tenant, scope="producer", requests_per_minute=rate, burst_size=rate)
        for tenant, rate in (("small", 2), ("free", 0))
    ]
    made = await limited(nodes, Clock(), replace(LOW, tenants=tuple(own)))

    assert [True, True, False] == [await made[1].take(tenant="small") for _ in range(3)]
    assert await made[1].take(10_000, tenant="free")
    assert made[1].quotas is not None
    assert [
        2,
        None,
        30,
    ] == [made[1].quotas.most(Scope.PRODUCER, each) for each in ("small", "free", "acme")]


async def test_without_limits_nobody_is_asked(nodes: Nodes) -> None:
    """Limits that are off cost nothing."""
    made = await limited(nodes, Clock(), RateLimitSettings())

    assert 30 == await taken(made, 30)
    assert [0, 0, 0] == [node.served for node in made]


async def test_without_an_owner_each_node_gives_out_its_share(nodes: Nodes) -> None:
    """Without a leader, limits do not cost availability, and still limit."""
    clock = Clock()
    made = await limited(nodes, clock, LOW)
    for node in made:
        node.led_by(None)

    assert [10, 10, 10] == [sum([await node.take() for _ in range(30)]) for node in made]
    clock.now_ns += 6 * SECOND_NS
    assert [2, 2, 2] == [sum([await node.take() for _ in range(30)]) for node in made]


async def test_a_batch_larger_than_the_share_is_let_by_for_all_of_it(nodes: Nodes) -> None:
    """A batch that fits the whole limit is not refused for lack of an owner."""
    made = await limited(nodes, Clock(), LOW)
    made[1].led_by(None)

    assert await made[1].take(25)
    assert not await made[1].take(1)


async def test_an_owner_that_died_is_done_without(nodes: Nodes) -> None:
    """The next leader starts with a full bucket."""
    made = await limited(nodes, Clock(), LOW)
    assert 30 == await taken(made, 60)
    await made[0].node.stop()
    assert not await made[1].take()  # The last refusal still holds.

    assert [True] * 10 + [False] == [await made[2].take(1, tenant="late") for _ in range(11)]
    for node in made[1:]:
        node.led_by("n2")
    assert await made[1].take(30)


async def test_an_answer_that_cannot_be_read_costs_other_tenants_nothing(nodes: Nodes) -> None:
    """Its tenant gets the node's share; the owner grants the others theirs, and is asked again."""
    clock = Clock()
    made = await limited(nodes, clock, LOW)
    damaged = True

    async def answer(peer: str, method: str, body: list[object], timeout_s: float) -> object:
        said = await made[0].serve(peer, method, body, timeout_s)
        return ["no", "lease"] if damaged and "evil" == body[1] else said

    made[0].node.serve = answer  # type: ignore[assignment]
    evil = [await made[1].take(tenant="evil") for _ in range(11)]
    others = [await made[1].take(tenant="acme") for _ in range(31)]
    damaged = False

    assert [True] * 10 + [False] == evil
    assert [True] * 30 + [False] == others
    assert await made[1].take(10, tenant="evil")


async def test_an_owner_that_is_silent_is_waited_for_once(nodes: Nodes) -> None:
    """All waiting requests continue together, and for a second none waits for it again."""
    clock = Clock()
    made = await limited(nodes, clock, LOW, owner_timeout_s=3.0)
    made[0].silent = True

    assert 10 == sum(await asyncio.gather(*(made[1].take() for _ in range(30))))
    assert 1 == made[0].served

    made[0].silent = False
    clock.now_ns += HOLD_NS
    assert await made[1].take(30)
    assert 1 == made[1].calls


async def test_a_node_that_does_not_lead_says_so(nodes: Nodes) -> None:
    """The asking node then uses its own share, and asks that node again once it leads."""
    made = await limited(nodes, Clock(), LOW)
    made[0].led_by("n3")
    assert made[0].quotas is not None
    with pytest.raises(NotLeader) as refused:
        await made[0].quotas.serve("n2", "borrow", ["producer", "acme", 1, 1], 1)
    assert "n3" == refused.value.hint
    assert await made[1].take(10)

    assert 1 == made[0].served
    made[0].led_by("n1")
    assert await made[1].take(30)


@pytest.mark.parametrize("body", [["producer", "acme", 0, 1], ["producer", "acme", 2, 1], ["x"]])
async def test_a_malformed_question_is_refused(nodes: Nodes, body: object) -> None:
    """A malformed request is granted no token."""
    made = await limited(nodes, Clock(), LOW)
    assert made[0].quotas is not None

    with pytest.raises(Exception, match=r"range|Expected"):
        await made[0].quotas.serve("n2", "borrow", body, 1)
    assert await made[0].take(30)


async def test_a_node_with_other_limits_is_told_to_wait(nodes: Nodes) -> None:
    """More than a full bucket holds is never granted, and the request takes no token."""
    made = await limited(nodes, Clock(), LOW)
    assert made[0].quotas is not None

    assert (
        0,
        HOLD_NS,
    ) == await made[0].quotas.serve("n2", "borrow", ["producer", "acme", 31, 31], 1)
    assert await made[0].take(30)


async def test_a_cancelled_request_holds_up_no_other(nodes: Nodes) -> None:
    """The next request asks in its place."""
    made = await limited(nodes, Clock(), LOW)
    made[0].silent = True
    async with asyncio.TaskGroup() as group:
        first = group.create_task(made[1].take())
        second = group.create_task(made[1].take())
        await eventually(lambda: made[0].served)
        made[0].silent = False
        first.cancel()

        assert await second
    assert first.cancelled()
    assert 1 == made[1].calls


async def test_an_error_of_the_owner_is_no_error_of_the_request(nodes: Nodes) -> None:
    """A peer that fails, or does not know the method, counts as absent."""
    made = await limited(nodes, Clock(), LOW)
    made[0].quotas = None

    assert await made[1].take(10)
    assert 1 == made[0].served
