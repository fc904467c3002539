"""Library: which PySyncObj this is, its options, and what replaces its clock, nodes and sockets.

This package uses the library's private names, so it starts only with the exact files it was written
against.
"""

# mypy: disable-error-code="no-untyped-call"
# The library has no annotations.

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Self

from pysyncobj import serializer, syncobj
from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from codeq_cluster.errors import SafetyViolated
from codeq_cluster.settings import RaftSettings

_VERSION = "0.3.17"
_SHA256 = {
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    "serializer.py": "4d39fde2f15000ad8f507ec229ebd4f6a86371b6f84d4dc1439a9cccd52857ee",
}
# Never reached: there is nothing to compact, because the journal's owner trims it.
_NEVER = 2**62


@cache
def verify() -> None:
    """Check that the installed library is the exact one this package was written against.

    Raises:
        SafetyViolated: Another version, or the same version with changed files.
    """
    if VERSION != _VERSION:
        raise SafetyViolated(f"pysyncobj is {VERSION}, this release holds {_VERSION} only")
    for module in (syncobj, serializer):
        path = Path(str(module.__file__))
        check_file(path.name, path.read_bytes())


def check_file(name: str, content: bytes) -> None:
    """Check one of the library's files against its pinned hash; raises SafetyViolated."""
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256[name]:
        raise SafetyViolated(
            f"pysyncobj's {name} has sha256 {found}, expected {_SHA256[name]}: reinstall it"
        )


class _Clock(threading.local):
    """The library's source of time: in each thread, the clock of that thread's group."""

    now: Callable[[], float]


_clock = _Clock()


def use_clock(now: Callable[[], float]) -> None:
    """Make the library read `now` in this thread from now on: the clock of the group at work.

    Several threads may run groups, for instance a broker in a test beside a simulation.
    """
    _clock.now = now
    vars(syncobj)["monotonicTime"] = _read_clock


def _read_clock() -> float:
    return _clock.now()


def configuration(settings: RaftSettings) -> SyncObjConf:
    """Return the library's options: no thread, no file, no fork, no pipe, no compaction."""
    heartbeat_s = settings.heartbeat_ms / 1000
    election_s = max(settings.election_ms / 1000, heartbeat_s * 4)
    options: dict[str, object] = {
        "autoTick": False,
        "appendEntriesPeriod": heartbeat_s,
        "raftMinTimeout": election_s,
        "raftMaxTimeout": election_s * 2,
        "connectionTimeout": election_s * 2,
        "leaderFallbackTimeout": max(settings.fallback_ms / 1000, heartbeat_s * 2),
        "appendEntriesUseBatch": True,
        "appendEntriesBatchSizeBytes": settings.append_bytes_max,
        "commandsWaitLeader": False,
        "commandsQueueSize": 1,
        "logCompactionMinEntries": _NEVER,
        "logCompactionMinTime": _NEVER,
        "dynamicMembershipChange": False,
        "fullDumpFile": None,
        "journalFile": None,
        "useFork": False,
        "password": None,
    }
    known = vars(SyncObjConf())
    unknown = options.keys() - known.keys()
    # The library accepts a misspelt option silently.
    assert not unknown, f"pysyncobj has no option {sorted(unknown)}"
    return SyncObjConf(**options)


class Member(int, Node):  # type: ignore[misc, unused-ignore]
    """A node that is also an integer, hashed from its id, because the library looks nodes up often.

    The integer is the same in every process, so a set of nodes has the same order in all of them.
    """

    def __new__(cls, id: str) -> Self:  # noqa: A002 - the library's name
        """Return the node; `id` is its name in the cluster."""
        return super().__new__(cls, int.from_bytes(blake2b(id.encode(), digest_size=7).digest()))

    def __init__(self, id: str) -> None:  # noqa: A002 - the library's name
        Node.__init__(self, id)

    __repr__ = Node.__repr__


class Carrier(Transport):  # type: ignore[misc, unused-ignore]
    """The library's transport, for sending only; `SafeSyncObj.deliver` hands in messages."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.carry: Callable[[str, Mapping[str, object]], None]

    ready = True  # In the library this is a property, read twice a tick.

    def send(self, node: Node, message: Mapping[str, object]) -> bool:
        """Hand on one of the library's own messages."""
        self.carry(node.id, message)
        return True

    def destroy(self) -> None:
        """Do nothing: there is no socket."""


class NoPoller:
    """A poller without sockets: `SafeSyncObj.deliver` hands in messages."""

    def poll(self, timeout: float) -> None:
        """Do nothing."""
