"""Disk: deleted data stays deleted, and some faults keep a node from starting."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_lite.disk import Disk, DiskFault


def test_a_lost_disk_leaves_nothing_for_a_power_cut_to_bring_back(tmp_path: Path) -> None:
    """Synced data is gone too, and the durable image accepts new files."""
    disk = Disk(tmp_path / "data", tmp_path / "disk")
    for directory in ("data", "disk/image"):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / "file").write_bytes(b"promised")
    disk.wipe()
    disk.cut_power()

    assert [] == list((tmp_path / "data").iterdir())
    assert (tmp_path / "disk" / "image").is_dir()


@pytest.mark.parametrize("fault", DiskFault)
def test_a_disk_refuses_when_writes_fail(tmp_path: Path, fault: DiskFault) -> None:
    """A slow or lying disk still takes writes."""
    disk = Disk(tmp_path / "data", tmp_path / "disk")
    disk.fault(fault)

    assert (fault in {DiskFault.FULL, DiskFault.ERROR}) == disk.refuses
