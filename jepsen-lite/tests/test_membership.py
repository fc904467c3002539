"""Membership: whom the operator asks, and which nodes it restarts."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from jepsen_lite.db import Db, Node
from jepsen_lite.disk import DiskFault
from jepsen_lite.membership import Change, _Operator
from jepsen_lite.network import LoopbackNetwork

# Ends at once when asked to, and answers nobody.
_SILENT = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); signal.pause()"
_TRANSFER = Change(kind="transfer", comes="n2")
_NAMES = ("n1", "n2", "n3")


class _SilentDb(Db):
    async def _open(self) -> None:
        for name in self.members:
            self.start(name)

    def _command(self, node: Node) -> list[str]:
        return [sys.executable, "-c", _SILENT]


_D = TypeVar("_D", bound=_SilentDb)


@asynccontextmanager
async def _running(kind: type[_D], directory: Path) -> AsyncIterator[_D]:
    network = LoopbackNetwork(_NAMES)
    try:
        async with kind(directory, network, _NAMES, shards=1, source=Path(), shimmed=False) as db:
            yield db
    finally:
        await network.close()


@pytest.mark.parametrize(
    ("given_up", "fault", "after_s", "starts"),
    [
        (True, DiskFault.NONE, 0, [1, 2, 1]),
        (True, DiskFault.NONE, 60, [1, 1, 1]),
        (True, DiskFault.ERROR, 0, [1, 1, 1]),
        (False, DiskFault.NONE, 0, [1, 1, 1]),
    ],
    ids=["waits", "not-yet", "bad-disk", "well"],
)
async def test_only_a_node_of_the_change_that_waits_is_restarted(
    tmp_path: Path, given_up: bool, fault: DiskFault, after_s: float, starts: list[int]
) -> None:
    """Others go on, and a disk that still fails would only be given up again."""
    async with _running(_SilentDb, tmp_path) as db:
        db.nodes["n2"].disk.fault(fault)
        if given_up:
            for name in ("n2", "n3"):
                with db.nodes[name].log_path.open("a") as log:
                    log.write('{"shard": 0, "reason": "given-up"}\n')
        operator = _Operator(db, restarts_after_s=after_s)

        assert not await operator.carry_out(_TRANSFER, within_s=0.6)
        assert starts == [db.nodes[name].starts for name in _NAMES]


class _RefusingDb(_SilentDb):
    """Its nodes refuse all commands until two of them have been asked."""

    asked: set[str]

    async def command(self, *words: str, among: Sequence[str], within_s: float) -> tuple[bool, str]:
        assert "cluster" == words[0], within_s
        self.asked.update(among)
        return len(self.asked) == 2, ""


async def test_another_node_is_asked_after_a_refusal(tmp_path: Path) -> None:
    """One whose replica is out knows no leader, and never will."""
    async with _running(_RefusingDb, tmp_path) as db:
        db.asked = set()

        assert await _Operator(db).carry_out(_TRANSFER, within_s=30)
        assert {"n1", "n3"} == db.asked
