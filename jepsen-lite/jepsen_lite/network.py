"""Network: one address per node, and links that can be cut one way or both."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

import msgspec

from jepsen_lite.switch import Command, Link, Port, Shape, Tally

# The MTU of a device; larger packets mean less work for the switch.
_MTU = 9000
_HARNESS = 100
_STRANGER = 101
_RUNS_MAX = 64
_LOCKS = Path("/run/jepsen-lite")

Rules = Mapping[tuple[str, str], Shape]


class NetworkFailed(RuntimeError):
    """A network cannot be created on this machine; the text says why."""


class Network(Protocol):
    """The network of a run.

    Attributes:
        cuttable: Whether `shape` works.
        harness: Address of the clients and of webhook sinks.
        stranger: Another address of this process, on which no rule acts.
    """

    cuttable: bool
    harness: str
    stranger: str

    def address(self, node: str) -> str:
        """Return a node's address."""

    def inside(self, node: str, command: Sequence[str]) -> list[str]:
        """Return a command line that runs `command` in a node's network."""

    async def open(self) -> None:
        """Create it.

        Raises:
            NetworkFailed: It cannot be created here.
        """

    async def shape(self, rules: Rules) -> None:
        """Set the rules of directed links, by node names; all others are open."""

    async def struck(self) -> dict[tuple[str, str], int]:
        """Return the number of packets that rules struck, by link, since the start."""

    async def close(self) -> None:
        """Remove it."""


class LoopbackNetwork:
    """Addresses of the loopback device: no privilege is needed, and no link can be cut."""

    cuttable = False

    def __init__(self, nodes: Sequence[str]) -> None:
        self._lock, run = _claim(Path(f"/tmp/jepsen-lite-{os.getuid()}"))
        self._addresses = {node: f"127.77.{run}.{n}" for n, node in enumerate(nodes, 1)}
        self.harness = f"127.77.{run}.{_HARNESS}"
        self.stranger = f"127.77.{run}.{_STRANGER}"

    def address(self, node: str) -> str:
        """Return a node's address."""
        return self._addresses[node]

    def inside(self, node: str, command: Sequence[str]) -> list[str]:
        """Return the command unchanged."""
        assert node in self._addresses
        return list(command)

    async def open(self) -> None:
        """Do nothing."""

    async def shape(self, rules: Rules) -> None:
        """Refuse every rule."""
        if rules:
            raise NetworkFailed("loopback links cannot be cut; run as root for namespaces")

    async def struck(self) -> dict[tuple[str, str], int]:
        """Return nothing."""
        return {}

    async def close(self) -> None:
        """Release the addresses."""
        self._lock.close()


class NamespaceNetwork:
    """One network namespace per node, joined by the switch."""

    cuttable = True

    def __init__(self, nodes: Sequence[str], *, seed: int) -> None:
        self._lock, run = _claim(_LOCKS)
        self._prefix = f"10.77.{run}"
        self._run = run
        self._numbers = {node: n for n, node in enumerate(nodes, 1)}
        self._seed = seed
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self.harness = f"{self._prefix}.{_HARNESS}"
        self.stranger = f"{self._prefix}.{_STRANGER}"

    def address(self, node: str) -> str:
        """Return a node's address."""
        return f"{self._prefix}.{self._numbers[node]}"

    def inside(self, node: str, command: Sequence[str]) -> list[str]:
        """Return a command line that runs `command` in a node's namespace."""
        return ["ip", "netns", "exec", self._namespace(node), *command]

    async def open(self) -> None:
        """Create namespaces, devices and the switch between them."""
        self._remove_namespaces()
        for node in self._numbers:
            _ip("netns", "add", self._namespace(node))
            _ip("-n", self._namespace(node), "link", "set", "lo", "up")
        device = f"jl{self._run}"
        ports = [
            Port(number, "jl0", self._namespace(node)) for node, number in self._numbers.items()
        ]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "jepsen_lite.switch",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            start_new_session=True,
        )
        with suppress(PermissionError):
            # Without priority the switch would wait for CPU time, and that looks like a slow
            # network.
            os.setpriority(os.PRIO_PROCESS, self._process.pid, -10)
        await self._tell(
            Command(open=(*ports, Port(_HARNESS, device, also=(_STRANGER,))), seed=self._seed)
        )
        for node in self._numbers:
            _up("jl0", self.address(node), namespace=self._namespace(node))
        _up(device, self.harness)
        _up(device, self.stranger)

    async def shape(self, rules: Rules) -> None:
        """Set the rules; the harness is the node `clients`."""
        links = tuple(
            Link(self._number(source), self._number(target), shape)
            for (source, target), shape in rules.items()
        )
        await self._tell(Command(links=links))

    async def struck(self) -> dict[tuple[str, str], int]:
        """Ask the switch."""
        tally = await self._tell(Command())
        names = {number: node for node, number in self._numbers.items()} | {_HARNESS: "clients"}
        found = {}
        for link, count in tally.struck.items():
            source, target = map(int, link.split(">"))
            found[names[source], names[target]] = count
        return found

    async def close(self) -> None:
        """Stop the switch and remove the namespaces."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()
            self._process = None
        self._remove_namespaces()
        self._lock.close()

    async def _tell(self, command: Command) -> Tally:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        async with self._turn:
            process.stdin.write(msgspec.json.encode(command) + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        if not line:
            raise NetworkFailed("the switch ended; needed are root and /dev/net/tun")
        return msgspec.json.decode(line, type=Tally)

    def _number(self, node: str) -> int:
        return _HARNESS if node == "clients" else self._numbers[node]

    def _namespace(self, node: str) -> str:
        return f"jl{self._run}-{node}"

    def _remove_namespaces(self) -> None:
        # Also remove the namespaces of an earlier run that was killed; the lock proves it is gone.
        for path in Path("/run/netns").glob(f"jl{self._run}-*"):
            _ip("netns", "del", path.name)


def namespaces_work() -> str:
    """Return an empty text if namespaces and TUN devices work, or else what to do."""
    if os.geteuid() != 0:
        return "not root: run as root"
    if shutil.which("ip") is None:
        return "no ip: apt install iproute2"
    name = f"jlprobe{os.getpid()}"
    try:
        _ip("netns", "add", name)
    except NetworkFailed as error:
        return f"{error}: a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN"
    try:
        _ip("-n", name, "tuntap", "add", "dev", "jl0", "mode", "tun")
    except NetworkFailed as error:
        return f"{error}: modprobe tun; a container needs the device /dev/net/tun"
    finally:
        _ip("netns", "del", name)
    return ""


def _claim(directory: Path) -> tuple[IO[bytes], int]:
    """Take the first number no other run has; it is free again when the file is closed."""
    directory.mkdir(parents=True, exist_ok=True)
    for run in itertools.count(1):
        if run > _RUNS_MAX:
            raise NetworkFailed(f"{_RUNS_MAX} runs at once are too many")
        lock = (directory / str(run)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return lock, run
    raise AssertionError


def _up(device: str, address: str, *, namespace: str = "") -> None:
    where = ("-n", namespace) if namespace else ()
    _ip(*where, "addr", "add", f"{address}/24", "dev", device)
    _ip(*where, "link", "set", device, "mtu", str(_MTU), "up")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkFailed(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
