"""Followers: what a leader remembers of its followers' answers."""

from __future__ import annotations

from collections import Counter


class Followers:
    """The notes of one replica's leaderships, by follower.

    Attributes:
        awaited: A caller on the follower's node waits for entries to be applied there.
        rewound: Number of the last message sent before the latest rewind.
        informed: The commit index that was last sent to the follower.
    """

    def __init__(self) -> None:
        self.awaited: dict[str, bool] = {}
        self.rewound: Counter[str] = Counter()
        self.informed: dict[str, int] = {}
        self._out_of_reach: dict[str, float] = {}

    def lacks_trimmed_entries(self, peer: str, now: float) -> None:
        """Note that the follower needs entries that this leader's log no longer has."""
        self._out_of_reach[peer] = now

    def out_of_reach(self, peer: str, *, since: float) -> bool:
        """Return whether the follower has needed trimmed entries after `since`."""
        return self._out_of_reach.get(peer, since) > since
