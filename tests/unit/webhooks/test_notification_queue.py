"""Notification queue and subscribers: receivers, limits and dropped notifications."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from codeq_cluster.broker.background import Background
from codeq_cluster.core.items import Mode, Subscription
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.webhooks.host_limits import Route
from codeq_cluster.webhooks.http_client import Sent
from codeq_cluster.webhooks.notification_queue import (
    LETTERS_MAX,
    LETTERS_OF_A_SERVER_MAX,
    Notification,
    NotificationQueue,
)
from codeq_cluster.webhooks.subscriber_selection import Subscribers, subscriber_groups


@dataclass
class World:
    """The outside world: targets with room or without, and a rate limit."""

    room_of: dict[str, int] = field(default_factory=dict)
    calls: FairShares = field(default_factory=lambda: FairShares(64, name="the calls"))
    answer: Sent = field(default_factory=lambda: Sent(ok=True, status=200))
    limited: bool = False
    read: list[str] = field(default_factory=list)
    heard: list[tuple[str, bytes, str]] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    unsent: list[str] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def route(self, tenant: str, url: str) -> Route:
        """Return where a URL leads; counted, since reading one takes long."""
        self.read.append(url)
        return tenant, urlsplit(url).netloc

    def room(self, route: Route) -> int:
        """Return the free places of a server."""
        return self.room_of.get(route[1], 4)

    async def post(
        self,
        url: str,
        body: bytes,
        *,
        tenant: str,
        delivery: str,
        trace_parent: str = "",
        trace_state: str = "",
        span: object = None,
    ) -> Sent:
        """Record a call, which belongs to no trace."""
        assert ("", "", None) == (trace_parent, trace_state, span)
        self.heard.append((url, body, delivery))
        await self.tell()
        return self.answer

    async def wait_s(self, tenant: str) -> float:
        """Return whether the tenant may call."""
        await self.tell()
        return 1.0 if self.limited else 0.0

    def counted(self, queue: str, outcome: str) -> None:
        """Count."""
        self.counts[queue, outcome] += 1

    async def tell(self) -> None:
        """Wake the callers that wait for an event."""
        async with self.changed:
            self.changed.notify_all()

    async def until_heard(self, count: int) -> None:
        """Wait until this many calls were made."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.heard) >= count)

    def notification(
        self,
        name: str,
        server: str = "swift",
        body: bytes | None = b"{}",
        *,
        tenant: str = "acme",
    ) -> Notification:
        """Return a notification."""
        return Notification(
            id=name,
            key=(name,),
            tenant=tenant,
            queue="render",
            url=f"http://{server}/{name}",
            write=lambda: body,
            unsent=lambda: self.unsent.append(name),
        )


def opened(world: World, background: Background) -> NotificationQueue:
    """Return a notification queue that sends into a world."""
    return NotificationQueue(
        world, background=background, wait_s=world.wait_s, on_outcome=world.counted
    )


async def ended(background: Background) -> None:
    """Wait until all requests that were begun have ended."""
    while background._tasks:
        await asyncio.wait(tuple(background._tasks))


async def test_each_letter_is_tried_once_and_counted() -> None:
    """Each notification counts as sent or as failed."""
    world, background = World(), Background()
    box = opened(world, background)
    box.put(world.notification("a"))
    await ended(background)
    world.answer = Sent(ok=False)
    box.put(world.notification("b"))
    await ended(background)

    assert [("http://swift/a", b"{}", "a"), ("http://swift/b", b"{}", "b")] == world.heard
    assert {("render", "success"): 1, ("render", "failure"): 1} == world.counts
    assert [] == world.unsent


async def test_a_letter_waits_for_room_and_others_pass_it() -> None:
    """A second notification with its key is not queued; the first is sent once there is room."""
    world, background = World(room_of={"slow": 0}), Background()
    box = opened(world, background)
    box.put(world.notification("s", "slow"))
    box.put(world.notification("s", "slow"))
    box.put(world.notification("a"))
    await world.until_heard(1)
    world.room_of["slow"] = 1
    await world.until_heard(2)
    await ended(background)

    assert ["http://swift/a", "http://slow/s"] == [url for url, _, _ in world.heard]
    assert ["s"] == world.unsent


async def test_the_url_of_a_server_without_room_is_read_once() -> None:
    """Each notification, and each look at those that wait, asks for room by the route alone."""
    world, background = World(room_of={"dead": 0}), Background()
    box = opened(world, background)
    for number in range(10):
        box.put(world.notification(f"d{number}", "dead"))
    box._look()

    assert ["http://dead/d0"] == world.read
    assert [] == world.heard
    box.stop()


async def test_nothing_to_tell_any_more_and_no_calls_left_are_not_sent() -> None:
    """An outdated one is not counted; one beyond the tenant's rate counts as dropped."""
    world, background = World(), Background()
    box = opened(world, background)
    box.put(world.notification("empty", body=None))
    await ended(background)
    world.limited = True
    box.put(world.notification("limited"))
    await ended(background)
    world.limited, world.answer = False, Sent(ok=False, deferred=True)
    box.put(world.notification("deferred"))
    await ended(background)

    assert ["empty", "limited", "deferred"] == world.unsent
    assert {("render", "dropped"): 2} == world.counts


async def test_a_server_that_never_has_room_keeps_a_bounded_number_for_a_bounded_time() -> None:
    """Notifications beyond the bound, or waiting too long, are dropped and counted."""
    world, background = World(room_of={"dead": 0}), Background()
    thrown_away = asyncio.Event()

    def on_outcome(queue: str, outcome: str) -> None:
        world.counted(queue, outcome)
        if world.counts[queue, "dropped"] == LETTERS_OF_A_SERVER_MAX + 1:
            thrown_away.set()

    box = NotificationQueue(
        world, background=background, wait_s=world.wait_s, on_outcome=on_outcome, stale_s=0.05
    )
    for number in range(LETTERS_OF_A_SERVER_MAX + 1):
        box.put(world.notification(f"d{number}", "dead"))
    assert {("render", "dropped"): 1} == world.counts
    assert [f"d{LETTERS_OF_A_SERVER_MAX}"] == world.unsent

    await thrown_away.wait()
    assert [] == world.heard
    box.stop()


async def test_a_tenant_that_fills_the_queue_crowds_no_other_tenant_out() -> None:
    """A tenant has a share of the waiting notifications and of the calls, at one server too."""
    world, background = World(room_of={f"s{n}": 0 for n in range(LETTERS_MAX)}), Background()
    box = opened(world, background)
    for number in range(LETTERS_MAX):
        box.put(world.notification(f"d{number}", f"s{number}"))
    for _ in range(32):
        world.calls.take("acme")
    box.put(world.notification("own", "swift"))
    box.put(world.notification("other", "swift", tenant="globex"))
    await world.until_heard(1)
    await ended(background)

    assert LETTERS_MAX // 2 + 1 == len(world.unsent)
    assert ["other"] == [name for _, _, name in world.heard]
    assert 32 == world.calls.free
    box.stop()


def subscription(name: str, mode: Mode, group: str = "") -> Subscription:
    """Return a subscription."""
    return Subscription(
        tenant="acme",
        id=name,
        worker="w",
        callback_url="http://swift/",
        mode=mode,
        group_id=group,
    )


def test_a_member_that_leaves_a_hash_party_moves_only_its_own_queues() -> None:
    """Rendezvous hashing guarantees this."""
    members = [subscription(f"s{number}", Mode.HASH) for number in range(5)]
    queues = [f"q{number}" for number in range(200)]

    def picked(among: list[Subscription]) -> dict[str, str]:
        [(party, found)] = subscriber_groups(among).items()
        audience = Subscribers()
        return {
            queue: audience.pick("acme", queue, party, found, wait_s=lambda _: 0.0)[0].id
            for queue in queues
        }

    before, after = picked(members), picked(members[:-1])

    assert {each.id for each in members} == set(before.values())
    assert all(after[queue] == who for queue, who in before.items() if who != "s4")


def test_a_group_continues_after_its_last_notified_member() -> None:
    """If all members must wait, the one whose wait ends first is picked."""
    members = [subscription(name, Mode.GROUP, "g") for name in ("a", "b", "c")]
    audience = Subscribers()

    def pick(among: list[Subscription], **waits: float) -> tuple[str, float]:
        [(party, found)] = subscriber_groups(among).items()
        who, wait_s = audience.pick(
            "acme", "q", party, found, wait_s=lambda each: waits.get(each.id, 0.0)
        )
        return who.id, wait_s

    assert ("a", 0.0) == pick(members)
    assert ("c", 0.0) == pick(members, b=9.0)
    assert ("b", 2.0) == pick(members, a=3.0, b=2.0, c=4.0)
    assert ("a", 0.0) == pick(members)
    assert ("c", 0.0) == pick([members[0], members[2]])
    assert ("a", 0.0) == pick(members)
