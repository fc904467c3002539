"""The switch: the effect of each rule on packets, with datagram sockets in place of devices."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from jepsen_lite.switch import Command, Link, Shape, Switch


class Cable:
    """A switch with two devices, 1 and 2."""

    def __init__(self) -> None:
        self.switch = Switch()
        self.ends: dict[int, socket.socket] = {}
        self._devices = []
        for number in (1, 2):
            end, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            end.setblocking(False)
            device.setblocking(False)
            self.ends[number] = end
            self._devices.append(device)
            self.switch._devices[number] = device.fileno()

    def shape(self, shape: Shape | None) -> None:
        """Set the rule of the link from 1 to 2."""
        links = (Link(1, 2, shape),) if shape else ()
        self.switch._rule(links)

    def send(self, source: int, target: int, text: bytes = b"") -> None:
        """Send one packet of version 4 and let the switch carry it."""
        header = bytearray(20)
        header[0], header[15], header[19] = 0x45, source, target
        self.ends[source].send(bytes(header) + text)
        self.switch._carry(self.switch._devices[source])
        self.switch._release()

    def received(self, target: int) -> list[bytes]:
        """Return the packets that arrived at a device."""
        found = []
        while True:
            try:
                found.append(self.ends[target].recv(65536)[20:])
            except BlockingIOError:
                return found

    def close(self) -> None:
        """Close all sockets."""
        for each in (*self.ends.values(), *self._devices):
            each.close()


@pytest.fixture
def cable() -> Iterator[Cable]:
    """Yield a switch with two devices."""
    made = Cable()
    yield made
    made.close()


def test_packets_pass_where_no_rule_is(cable: Cable) -> None:
    """A packet without a rule arrives, and none counts as struck."""
    cable.send(1, 2, b"a")

    assert [b"a"] == cable.received(2)
    assert not cable.switch._struck


def test_a_cut_is_one_way(cable: Cable) -> None:
    """The other direction stays open, and the loss is counted."""
    cable.shape(Shape(cut=True))
    cable.send(1, 2)
    cable.send(2, 1, b"back")

    assert [] == cable.received(2)
    assert [b"back"] == cable.received(1)
    assert {"1>2": 1} == dict(cable.switch._struck)


def test_held_packets_arrive_together_when_released(cable: Cable) -> None:
    """Held packets come in order, and none comes before."""
    cable.shape(Shape(stall=True))
    cable.send(1, 2, b"a")
    cable.send(1, 2, b"b")
    held = cable.received(2)
    cable.shape(None)

    assert [] == held
    assert [b"a", b"b"] == cable.received(2)


def test_a_delayed_packet_arrives_when_it_is_due(cable: Cable) -> None:
    """A delayed packet does not come before its delay is over."""
    cable.shape(Shape(delay_ms=500))
    begun = time.monotonic()
    cable.send(1, 2, b"a")
    early = cable.received(2)
    while not (late := cable.received(2)):
        cable.switch._release()

    assert [] == early
    assert [b"a"] == late
    assert time.monotonic() - begun >= 0.5


def test_packets_are_lost_or_doubled_by_the_given_share(cable: Cable) -> None:
    """A share of 1 is certain: every packet is lost, or every packet is doubled."""
    cable.shape(Shape(loss=1.0))
    cable.send(1, 2, b"a")
    cable.shape(Shape(dup=1.0))
    cable.send(1, 2, b"b")

    assert [b"b", b"b"] == cable.received(2)


def test_packets_without_a_receiver_are_dropped(cable: Cable) -> None:
    """A packet to a node that does not exist does no harm."""
    cable.send(1, 9, b"a")

    assert [] == cable.received(2)


def test_a_command_without_rules_leaves_them() -> None:
    """Asking for counts must not heal a partition."""
    assert Command().links is None
