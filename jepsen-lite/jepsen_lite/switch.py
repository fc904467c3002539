"""Switch: a process that carries the packets between nodes, and drops them on demand.

Each node's network namespace has one TUN device; the harness has one outside of all of them. The
switch reads packets from the sender's device and writes them to the receiver's, unless a rule for
that directed link applies. Commands are lines of JSON on standard input, answers go to standard
output.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x1
_IFF_NO_PI = 0x1000
_CLONE_NEWNET = 0x40000000

_PACKET_BYTES_MAX = 65536
# The most packets read from one device in a row: a busy one must not starve the others.
_BURST = 64
# The most packets held at a time; further ones are dropped, as by a real switch.
_HELD_MAX = 50_000


class Shape(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The treatment of the packets of one directed link.

    Attributes:
        cut: All are dropped.
        loss, dup: The share that is dropped, or arrives twice.
        delay_ms, jitter_ms: Each packet is late by this much; with jitter, packets overtake others.
        stall: All are held until the rule is lifted, and then arrive together.
    """

    cut: bool = False
    loss: float = 0.0
    dup: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    stall: bool = False


class Link(Struct, frozen=True):
    """A directed link; its ends are numbers, the last byte of an address."""

    source: int
    target: int
    shape: Shape


class Port(Struct, frozen=True):
    """A device to create: in a namespace by name, or else in the present one.

    Attributes:
        also: The numbers of its further addresses.
    """

    number: int
    device: str
    namespace: str = ""
    also: tuple[int, ...] = ()


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command of the harness.

    Attributes:
        open: Devices to create; only in the first command.
        seed: Of losses and delays; only in the first command.
        links: All rules from now on; None keeps the current ones.
    """

    open: tuple[Port, ...] = ()
    seed: int = 0
    links: tuple[Link, ...] | None = None


class Tally(Struct, frozen=True, kw_only=True):
    """The answer to every command: packets since the start.

    Attributes:
        struck: Packets affected by a rule, by `source>target`.
    """

    passed: int
    struck: dict[str, int]


class Switch:
    """Devices and rules."""

    def __init__(self) -> None:
        self._devices: dict[int, int] = {}
        self._rules: dict[tuple[int, int], Shape] = {}
        self._held: list[tuple[float, int, tuple[int, int], int, bytes]] = []
        self._stalled: list[tuple[tuple[int, int], int, bytes]] = []
        self._numbers = itertools.count()
        self._random = random.Random()
        self._passed = 0
        self._struck: Counter[str] = Counter()

    def serve(self) -> None:
        """Carry packets until standard input ends."""
        poll = select.epoll()
        commands = sys.stdin.fileno()
        os.set_blocking(commands, False)
        poll.register(commands, select.EPOLLIN)
        pending = b""
        ports: dict[int, int] = {}
        while True:
            for fd, _ in poll.poll(self._wait_s()):
                if fd != commands:
                    self._carry(fd)
                    continue
                read = os.read(commands, _PACKET_BYTES_MAX)
                if not read:
                    return
                *lines, pending = (pending + read).split(b"\n")
                for line in lines:
                    self._obey(msgspec.json.decode(line, type=Command))
                    for opened in set(self._devices.values()) - ports.keys():
                        ports[opened] = opened
                        poll.register(opened, select.EPOLLIN)
            self._release()

    def _obey(self, command: Command) -> None:
        if command.open:
            self._random.seed(command.seed)
        for port in command.open:
            self._devices |= dict.fromkeys((port.number, *port.also), _device(port))
        if command.links is not None:
            self._rule(command.links)
        tally = Tally(passed=self._passed, struck=dict(self._struck))
        sys.stdout.buffer.write(msgspec.json.encode(tally) + b"\n")
        sys.stdout.buffer.flush()

    def _rule(self, links: tuple[Link, ...]) -> None:
        """Replace the rules; packets that are no longer held go out at once."""
        self._rules = {(link.source, link.target): link.shape for link in links}
        stalled, self._stalled = self._stalled, []
        for link, device, packet in stalled:
            if self._rules.get(link, Shape()).stall:
                self._stalled.append((link, device, packet))
            else:
                _send(device, packet)

    def _wait_s(self) -> float:
        return max(0.0, self._held[0][0] - time.monotonic()) if self._held else -1

    def _carry(self, fd: int) -> None:
        for _ in range(_BURST):
            try:
                packet = os.read(fd, _PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            # IPv4 only: a TUN device sends IPv6 packets of its own, which belong to no node.
            if packet[0] >> 4 != 4:
                continue
            device = self._devices.get(packet[19])
            if device is None:
                continue
            link = (packet[15], packet[19])
            shape = self._rules.get(link)
            if shape is None:
                self._passed += 1
                _send(device, packet)
            else:
                self._struck[f"{link[0]}>{link[1]}"] += 1
                self._shape(shape, link, device, packet)

    def _shape(self, shape: Shape, link: tuple[int, int], device: int, packet: bytes) -> None:
        chance = self._random.random
        if shape.cut or chance() < shape.loss:
            return
        if len(self._held) + len(self._stalled) >= _HELD_MAX:
            return
        if shape.stall:
            self._stalled.append((link, device, packet))
            return
        for _ in range(2 if chance() < shape.dup else 1):
            late_ms = shape.delay_ms + chance() * shape.jitter_ms
            due = time.monotonic() + late_ms / 1000
            heapq.heappush(self._held, (due, next(self._numbers), link, device, packet))

    def _release(self) -> None:
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            _, _, link, device, packet = heapq.heappop(self._held)
            # A cut link also loses the packets that were under way.
            if not self._rules.get(link, Shape()).cut:
                _send(device, packet)


def _send(device: int, packet: bytes) -> None:
    # A device that is full or gone drops the packet, as a real network would.
    with suppress(OSError):
        os.write(device, packet)


def _device(port: Port) -> int:
    """Create a TUN device in its namespace and return its descriptor."""

    def opened() -> int:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        request = struct.pack("16sH", port.device.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(fd, _TUNSETIFF, request)
        return fd

    return _inside(port.namespace, opened) if port.namespace else opened()


def _inside(namespace: str, act: Callable[[], int]) -> int:
    libc = ctypes.CDLL("libc.so.6", use_errno=True)

    def enter(path: str) -> None:
        with Path(path).open("rb") as opened:
            if libc.setns(opened.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {path}")

    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        enter(f"/run/netns/{namespace}")
        return act()
    finally:
        if libc.setns(home, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot leave the namespace")
        os.close(home)


if __name__ == "__main__":
    Switch().serve()
