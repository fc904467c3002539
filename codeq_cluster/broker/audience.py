"""Audience: which subscriptions hear a notice of a queue.

The subscriptions of a queue fall into parties, and of each party one hears: a fanout subscription
is a party of its own, a group is one, and all that go by hash are one together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from codeq_cluster.core.items import Mode, Subscription

Party = tuple[Mode, str]

_TURNS_MAX = 10_000  # Groups, by queue, whose turn is remembered; about 300 bytes each.


def parties(subscriptions: Iterable[Subscription]) -> dict[Party, list[Subscription]]:
    """Return the members of each party, the oldest first."""
    found: dict[Party, list[Subscription]] = {}
    for each in subscriptions:
        found.setdefault(_party(each), []).append(each)
    for members in found.values():
        members.sort(key=lambda each: (each.created_ms, each.id))
    return found


class Audience:
    """Picks who of a party hears; remembers in memory whose turn it is in a group."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, Party], str] = {}

    def pick(
        self,
        tenant: str,
        queue: str,
        party: Party,
        members: Sequence[Subscription],
        *,
        wait_s: Callable[[Subscription], float],
    ) -> tuple[Subscription, float]:
        """Return who hears, and how long it must not hear yet; 0 for now.

        A member of a group that must not hear yet is passed over for the next one that may; when
        none may, it is the one that may first.

        Args:
            tenant: Whose queue.
            queue: Which.
            party: As `parties` names it.
            members: Its members in order, at least one.
            wait_s: Tells how long a subscription must not hear yet, in seconds.
        """
        match party[0]:
            case Mode.FANOUT:
                [picked] = members
            case Mode.HASH:
                # Rendezvous: a queue stays with its member as long as that one is there.
                picked = max(members, key=lambda each: _score(tenant, queue, each.id))
            case Mode.GROUP:
                picked = min(self._in_turn(tenant, queue, party, members), key=wait_s)
        left_s = wait_s(picked)
        if party[0] is Mode.GROUP and not left_s:
            self._took_turn(tenant, queue, party, picked)
        return picked, left_s

    def _in_turn(
        self, tenant: str, queue: str, party: Party, members: Sequence[Subscription]
    ) -> Sequence[Subscription]:
        """Return the members, beginning after the one that heard last."""
        last = self._last.get((tenant, queue, party))
        for position, member in enumerate(members):
            if member.id == last:
                return (*members[position + 1 :], *members[: position + 1])
        return members

    def _took_turn(self, tenant: str, queue: str, party: Party, member: Subscription) -> None:
        place = (tenant, queue, party)
        self._last.pop(place, None)
        if len(self._last) >= _TURNS_MAX:
            del self._last[next(iter(self._last))]
        self._last[place] = member.id


def _party(subscription: Subscription) -> Party:
    match subscription.mode:
        case Mode.FANOUT:
            return Mode.FANOUT, subscription.id
        case Mode.GROUP:
            return Mode.GROUP, subscription.group_id
        case Mode.HASH:
            return Mode.HASH, ""


def _score(tenant: str, queue: str, subscription_id: str) -> bytes:
    return blake2b(f"{tenant}/{queue}/{subscription_id}".encode(), digest_size=8).digest()
