"""Node backups: the reasons for which no backup is taken from a replica."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from codeq_cluster.errors import StorageDamaged, StorageFailed
from codeq_cluster.node.backup_source import watch
from codeq_cluster.node.disk_guard import DiskGuard
from tests.simulator.cluster import SimCluster
from tests.simulator.scenes import propose, settled


class Replica:
    """A replica whose disk is good."""

    async def withdraw(self) -> None:
        """Do nothing."""

    async def reopen(self) -> None:
        """Do nothing."""


async def _nobody_leads() -> None:
    pass


def disk_guard() -> DiskGuard:
    """Return the guard of one replica, on a disk with room."""
    return DiskGuard(
        replicas=[Replica()],
        path=Path("/data"),
        min_free_bytes=0,
        transfer_all=_nobody_leads,
        fatal=lambda _shard, error: None,
        free_bytes=lambda _path: 1,
        probe=lambda _path: None,
    )


def watched(cluster: SimCluster, out: DiskGuard) -> Callable[[], str]:
    """Start to watch the replica of node A."""
    return watch(0, disk_guard=out, group=cluster.nodes["A"].group)


async def test_a_replica_that_is_out_is_wrong_and_says_why() -> None:
    """A replica that was out at any time since the start counts as wrong, even if it is back."""
    cluster, out = settled(), disk_guard()
    sound = watched(cluster, out)
    assert not sound()

    out.diverged(0, 77)
    at_first = watched(cluster, out)
    assert "its state at entry 77 is not the majority's" in sound()
    assert sound() == at_first()
    out.installed(0)
    assert "its state at entry 77 is not the majority's" in sound()
    assert sound() == at_first()

    assert not watched(cluster, out)()


async def test_an_outage_that_is_over_is_no_reason_for_the_next() -> None:
    """A disk that failed and works again is not the cause of later damage."""
    cluster, out = settled(), disk_guard()
    out.failed(0, StorageFailed("writing: IO error"))
    await out.look()
    out._retry_at = 0.0
    await out.look()
    assert not out.out
    sound = watched(cluster, out)
    assert not sound()

    out.failed(0, StorageDamaged("reading rows: Corruption"))

    assert "the data is damaged: reading rows: Corruption" in sound()


def test_a_suspect_replica_is_wrong_until_a_majority_agrees_with_it() -> None:
    """Two replicas that differ cannot tell which of them is right."""
    cluster = settled()
    propose(cluster, 3)
    for node_id in "ABC":
        cluster.crash(node_id)
    cluster.start("A")
    cluster.start("B")
    cluster.nodes["B"].machine.corrupt()
    cluster.run_until(lambda: bool(cluster.nodes["A"].group.status().in_doubt))
    sound = watched(cluster, disk_guard())

    assert "its state is not that of B, and no majority has been heard" == sound()
    cluster.start("C")
    cluster.run_until(lambda: not cluster.nodes["B"].machine.corrupted)
    cluster.run_until(lambda: cluster.leader() is not None)
    assert not sound()
