"""Subscriber selection: decides which subscriptions get a queue's notice.

The subscriptions of a queue form subscriber groups, and one member of each gets the notice. Each
fanout subscription is a group by itself, each named group is one, and all hash subscriptions
together are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from codeq_cluster.core.items import Mode, Subscription

SubscriberGroup = tuple[Mode, str]

_TURNS_MAX = 10_000  # Groups, by queue, whose last receiver is remembered; about 300 bytes each.


def subscriber_groups(
    subscriptions: Iterable[Subscription],
) -> dict[SubscriberGroup, list[Subscription]]:
    """Return the members of each subscriber group, the oldest first."""
    found: dict[SubscriberGroup, list[Subscription]] = {}
    for each in subscriptions:
        found.setdefault(group_of(each), []).append(each)
    for members in found.values():
        members.sort(key=lambda each: (each.created_ms, each.id))
    return found


class Subscribers:
    """Picks the receiver in a subscriber group; keeps the last receiver of each in memory."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, SubscriberGroup], str] = {}

    def pick(
        self,
        tenant: str,
        queue: str,
        group: SubscriberGroup,
        members: Sequence[Subscription],
        *,
        wait_s: Callable[[Subscription], float],
    ) -> tuple[Subscription, float]:
        """Return the receiver, and for how many seconds its notice must wait; 0 for now.

        A named group passes over members that must wait. If all must wait, it picks the one whose
        wait ends first.

        Args:
            group: The key of the subscriber group in `subscriber_groups`.
            members: The group's members in order, at least one.
            wait_s: Returns how long a subscription must still wait, in seconds.
        """
        match group[0]:
            case Mode.FANOUT:
                [picked] = members
            case Mode.HASH:
                # Rendezvous hashing: a queue keeps its member for as long as that member exists.
                picked = max(members, key=lambda each: _score(tenant, queue, each.id))
            case Mode.GROUP:
                picked = min(self._in_turn(tenant, queue, group, members), key=wait_s)
        left_s = wait_s(picked)
        if group[0] is Mode.GROUP and not left_s:
            self._took_turn(tenant, queue, group, picked)
        return picked, left_s

    def _in_turn(
        self, tenant: str, queue: str, group: SubscriberGroup, members: Sequence[Subscription]
    ) -> Sequence[Subscription]:
        """Return the members, starting after the last receiver."""
        last = self._last.get((tenant, queue, group))
        for position, member in enumerate(members):
            if member.id == last:
                return (*members[position + 1 :], *members[: position + 1])
        return members

    def _took_turn(
        self, tenant: str, queue: str, group: SubscriberGroup, member: Subscription
    ) -> None:
        place = (tenant, queue, group)
        self._last.pop(place, None)
        if len(self._last) >= _TURNS_MAX:
            del self._last[next(iter(self._last))]
        self._last[place] = member.id


def group_of(subscription: Subscription) -> SubscriberGroup:
    """Return the subscriber group of a subscription, the same for every queue."""
    match subscription.mode:
        case Mode.FANOUT:
            return Mode.FANOUT, subscription.id
        case Mode.GROUP:
            return Mode.GROUP, subscription.group_id
        case Mode.HASH:
            return Mode.HASH, ""


def _score(tenant: str, queue: str, subscription_id: str) -> bytes:
    return blake2b(f"{tenant}/{queue}/{subscription_id}".encode(), digest_size=8).digest()
