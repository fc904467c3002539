"""A backup as an earlier release wrote it, in the directory beside this file.

A difference means that this release cannot read operators' backups: that must be decided, not
discovered. To rewrite it after such a decision, and after giving the format a new version:

    GOLDEN_REWRITE=1 pytest tests/golden
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from codeq_cluster.backup import manifest as manifests
from codeq_cluster.backup.catalogue import chosen, rows_of, verify
from codeq_cluster.backup.chunks import encoded
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from tests.properties.backup_worlds import World, back_up

KEPT = Path(__file__).parent / "backup"
TASKS = 8


@pytest.fixture
def place(tmp_path: Path) -> BackupDirectory:
    """Return the place of the stored backup."""
    if os.environ.get("GOLDEN_REWRITE"):
        shutil.rmtree(KEPT, ignore_errors=True)
        world = World(2, seed=8)
        world.live(40)
        back_up(world, BackupDirectory(KEPT), tmp_path)
    return BackupDirectory(KEPT)


def test_an_earlier_backup_is_read_and_restored(place: BackupDirectory, tmp_path: Path) -> None:
    """Every byte and record is read, and restored onto fewer shards."""
    manifest = chosen(place)
    verify(place, manifest)
    source = RestoreSource(place=place, manifest=manifest)
    wanted = Wanted(cluster_id="new", shards=1)
    done = restore([source], wanted, into=tmp_path / "data", node_id="a")

    assert done.tasks == manifest.tasks == TASKS
    assert (1, 2) == (manifest.format_version, manifest.shards)


def test_the_written_format_has_not_changed(place: BackupDirectory) -> None:
    """The manifest is equal byte for byte; the rows are equal before compression."""
    manifest = chosen(place)
    [stored] = [each for each in (KEPT / manifest.id).iterdir() if each.suffix == ".json"]

    assert stored.read_bytes() == manifests.encode(manifest)
    for part in manifest.parts:
        rows = [row for chunk in rows_of(place, manifest, part) for row in chunk]
        [(head, again)] = [(piece[:4], piece) for piece in list(encoded(rows))[1:-1]]
        before = (KEPT / manifest.id / part.file).read_bytes()
        assert before.startswith(b"CODEQBK1")
        assert again[4:8] == before[12:16]  # The size of the uncompressed rows.
        assert len(again) - 24 == int.from_bytes(head)
