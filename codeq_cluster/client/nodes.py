"""Nodes: the nodes a client knows, and the order in which it asks them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

NODES_MAX: Final = 100  # More than any cluster has; bounds what a wrong answer can add.

_REST_S: Final = 0.5  # After the first failure; doubles with each further one.
_REST_S_MAX: Final = 30.0
_FAILURES_DOUBLED_MAX: Final = 6  # 0.5 s x 2^6 is more than the longest rest.


@dataclass(slots=True)
class _Trouble:
    """How often a node has failed in a row, and until when it is asked last."""

    failures: int
    until_s: float


class Nodes:
    """The nodes the caller named, then those learned from them.

    The node that answered last is asked first. A node that failed is asked after all others until
    it has rested; its rest doubles with every failure in a row, from 0.5 s to 30 s.
    """

    def __init__(
        self, named: Sequence[str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare a list.

        Args:
            named: Base URLs, at least one, the preferred ones first.
            monotonic: Seconds that never jump.
        """
        assert named
        self._named = tuple(dict.fromkeys(url.rstrip("/") for url in named))
        self._learned: tuple[str, ...] = ()
        self._current = self._named[0]
        self._trouble: dict[str, _Trouble] = {}
        self._monotonic = monotonic

    @property
    def all(self) -> tuple[str, ...]:
        """Every base URL known: those the caller named, then those learned."""
        return tuple(dict.fromkeys((*self._named, *self._learned)))

    def order(self) -> list[str]:
        """Return all base URLs in the order to ask them."""
        known = self.all
        start = known.index(self._current) if self._current in known else 0
        turned = known[start:] + known[:start]
        now_s = self._monotonic()

        def rests_until_s(url: str) -> float:
            trouble = self._trouble.get(url)
            return trouble.until_s if trouble is not None and trouble.until_s > now_s else 0.0

        # The sort is stable: nodes that have not failed keep their order.
        return sorted(turned, key=rests_until_s)

    def answered(self, url: str) -> None:
        """Note that a node answered: the next request starts with it."""
        self._current = url
        self._trouble.pop(url, None)

    def failed(self, url: str) -> None:
        """Note that a node did not answer or cannot serve now."""
        before = self._trouble.get(url)
        failures = 1 if before is None else before.failures + 1
        rest_s = min(_REST_S_MAX, _REST_S * 2 ** min(failures - 1, _FAILURES_DOUBLED_MAX))
        self._trouble[url] = _Trouble(failures, self._monotonic() + rest_s)

    def learn(self, urls: Iterable[str]) -> None:
        """Replace the nodes learned before.

        A client that was given only https URLs never learns an http one, which would send its token
        in clear text.
        """
        secure = all(url.startswith("https://") for url in self._named)
        schemes = ("https://",) if secure else ("https://", "http://")
        found = dict.fromkeys(url.rstrip("/") for url in urls if url.startswith(schemes))
        self._learned = tuple(found)[:NODES_MAX]
        known = self.all
        self._trouble = {url: each for url, each in self._trouble.items() if url in known}
