"""Circuit breaker: hosts that keep failing are left alone, then tried with one request.

A host is one as a tenant knows it: failures that one tenant provokes stop no other tenant's calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from codeq_cluster.webhooks.host_limits import Route

FAILURES_MAX = 5  # One delivery's tries: a host with many waiting deliveries fails sooner.
COOLDOWN_S = 5.0
COOLDOWN_S_MAX = 60.0
HOSTS_MAX = 10_000  # Some 200 bytes each.


@dataclass(slots=True)
class _Failing:
    """A host whose last answer was a failure.

    Attributes:
        open_until_s: No request before that; None while the circuit is closed.
        probing: The probe that decides is in progress.
    """

    failures: int = 0
    cooldown_s: float = 0.0
    open_until_s: float | None = None
    probing: bool = False


class CircuitBreaker:
    """One circuit a tenant and host: closed, open after failures in a row, then half-open.

    Only failing hosts are remembered. Beyond `hosts_max`, the host with the oldest failure is
    forgotten, which closes its circuit.

    Args:
        failures_max: In a row, after which a circuit opens.
        cooldown_s: First cool-down, seconds; each probe that fails doubles it.
        cooldown_s_max: Longest cool-down.
        now_s: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        now_s: Callable[[], float],
        failures_max: int = FAILURES_MAX,
        cooldown_s: float = COOLDOWN_S,
        cooldown_s_max: float = COOLDOWN_S_MAX,
        hosts_max: int = HOSTS_MAX,
    ) -> None:
        assert failures_max >= 1
        assert 0 < cooldown_s <= cooldown_s_max
        assert hosts_max >= 1
        self._now_s = now_s
        self._failures_max = failures_max
        self._cooldown_s = cooldown_s
        self._cooldown_s_max = cooldown_s_max
        self._hosts_max = hosts_max
        self._failing: dict[Route, _Failing] = {}

    def __len__(self) -> int:
        return len(self._failing)

    def wait_s(self, route: Route) -> float:
        """Return 0 if a request may be made now, else seconds until it is worth asking again."""
        state = self._failing.get(route)
        if state is None or state.open_until_s is None:
            return 0.0
        if state.probing:
            return self._cooldown_s
        return max(0.0, state.open_until_s - self._now_s())

    def admit(self, route: Route) -> float:
        """Ask to make a request: 0 admits it, any other value is `wait_s`.

        An admitted request must end with one of `succeeded`, `failed` and `undecided`.
        """
        wait_s = self.wait_s(route)
        state = self._failing.get(route)
        if wait_s == 0.0 and state is not None and state.open_until_s is not None:
            state.probing = True
        return wait_s

    def succeeded(self, route: Route) -> None:
        """Close the circuit: the host answers."""
        self._failing.pop(route, None)

    def failed(self, route: Route) -> None:
        """Count a failure; the last of a row, or a probe's, opens the circuit."""
        state = self._failing.pop(route, None) or _Failing()
        if len(self._failing) >= self._hosts_max:
            del self._failing[next(iter(self._failing))]
        self._failing[route] = state
        state.failures += 1
        if state.open_until_s is None:
            if state.failures >= self._failures_max:
                self._open(state, self._cooldown_s)
        elif state.probing:
            self._open(state, min(2 * state.cooldown_s, self._cooldown_s_max))
        # Otherwise it began before the circuit opened, so it is no news.

    def undecided(self, route: Route) -> None:
        """Drop a request that showed nothing about the host; another one may probe."""
        state = self._failing.get(route)
        if state is not None:
            state.probing = False

    def _open(self, state: _Failing, cooldown_s: float) -> None:
        state.probing = False
        state.cooldown_s = cooldown_s
        state.open_until_s = self._now_s() + cooldown_s
