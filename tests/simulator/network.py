"""Simulated network: delays, losses, duplicates, overtaking, cuts, stalls and dead connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tests.simulator.clock import SimClock

Receive = Callable[[str, Mapping[str, object]], None]
# A directed link: the sender, the receiver.
Wire = tuple[str, str]

_SENT_AGAIN_S = 0.2  # TCP's shortest wait before it resends a packet.


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """The faults that messages meet; the default is a fast network without faults.

    Attributes:
        delays_s: Drawn uniformly, per message.
        drop: Probability that a message is lost.
        duplicate: Probability that it arrives twice, the second time up to 3 s late.
        overtake: Probability that it does not wait for the messages sent before it.
        ghost: Probability that a frame of a dead connection still arrives.
    """

    delays_s: tuple[float, ...] = (0.0005,)
    drop: float = 0.0
    duplicate: float = 0.0
    overtake: float = 0.0
    ghost: float = 0.0


class SimNetwork:
    """Carries messages between nodes.

    Attributes:
        faults: The current faults.
        cut: Directed links that carry nothing.
        receivers: Per node that is up.
        observers: Called with (sender, receiver, message) for each message sent.
    """

    def __init__(self, clock: SimClock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._free_at: dict[Wire, float] = {}
        self._connection: Counter[Wire] = Counter()
        self._held: dict[Wire, list[Mapping[str, object]]] = {}
        self.faults = NetworkFaults()
        self.cut: set[Wire] = set()
        self.receivers: dict[str, Receive] = {}
        self.observers: list[Callable[[str, str, Mapping[str, object]], None]] = []

    def send(
        self, sender: str, receiver: str, message: Mapping[str, object], *, whole: bool = False
    ) -> bool:
        """Carry one message, or lose it; False if it is known to be lost.

        Args:
            sender: The sending node.
            receiver: The receiving node.
            message: The message.
            whole: Its connection keeps order, and neither loses nor duplicates while it is up. A
                lost packet only costs time. When the connection ends, the message is lost.
        """
        for observe in self.observers:
            observe(sender, receiver, message)
        wire = (sender, receiver)
        if wire in self._held:
            self._held[wire].append(message)
            return True
        if wire in self.cut or receiver not in self.receivers:
            return False
        faults, random = self.faults, self._random
        lost = random.random() < faults.drop
        if lost and not whole:
            return True
        arrival = self._clock.now + random.choice(faults.delays_s) + lost * _SENT_AGAIN_S
        if whole or random.random() >= faults.overtake:
            arrival = max(arrival, self._free_at.get(wire, 0.0))
            self._free_at[wire] = arrival
        self._deliver_at(arrival, wire, message, whole=whole)
        if not whole and random.random() < faults.duplicate:
            self._deliver_at(arrival + random.choice((0.05, 0.5, 3.0)), wire, message)
        return True

    def stall(self, wire: Wire, seconds: float) -> None:
        """Freeze a link: messages sent meanwhile arrive in one burst."""
        self._free_at[wire] = max(self._free_at.get(wire, 0.0), self._clock.now + seconds)

    def hold(self, wire: Wire) -> list[Mapping[str, object]]:
        """Hold the link's messages; return the list that collects them."""
        return self._held.setdefault(wire, [])

    def release(self, wire: Wire) -> None:
        """Carry messages again; held ones are dropped unless the caller delivers them."""
        self._held.pop(wire, None)

    def deliver(self, wire: Wire, message: Mapping[str, object]) -> None:
        """Deliver a message now, whatever the state of the link."""
        sender, receiver = wire
        if receiver in self.receivers:
            self.receivers[receiver](sender, message)

    def reset(self, one: str, other: str) -> None:
        """Break the connection: messages in transfer become frames of a dead one."""
        for wire in ((one, other), (other, one)):
            self._connection[wire] += 1
            self._free_at.pop(wire, None)

    def _deliver_at(
        self, arrival: float, wire: Wire, message: Mapping[str, object], *, whole: bool = False
    ) -> None:
        connection = self._connection[wire]

        def arrive() -> None:
            if wire in self.cut:
                return
            dead = connection != self._connection[wire]
            if dead and (whole or self._random.random() >= self.faults.ghost):
                return
            self.deliver(wire, message)

        self._clock.at(arrival, arrive)
