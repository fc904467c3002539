"""Damage: any change of any byte of a backup is found."""

from __future__ import annotations

import struct
import zlib
from hashlib import blake2b
from pathlib import Path

import pytest

from codeq_cluster.backup.catalogue import chosen, rows_of, verify
from codeq_cluster.backup.chunks import decoded, encoded
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.manifest import MANIFEST, part_file
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.errors import BackupDamaged, BackupFailed, DataDirectoryRefused
from codeq_cluster.storage.directory import open_directory
from tests.properties.backup_worlds import World, back_up


@pytest.fixture
def place(tmp_path: Path) -> BackupDirectory:
    """Return a place with one small backup of two shards."""
    world = World(2, seed=3)
    world.live(14)
    place = BackupDirectory(tmp_path / "backups")
    manifest = back_up(world, place, tmp_path)
    assert manifest.tasks > 0
    return place


def _file(place: BackupDirectory, name: str) -> Path:
    return Path(place.where, chosen(place).id, name)


@pytest.mark.parametrize("name", [MANIFEST, part_file(0), part_file(1)])
def test_no_byte_changes_unnoticed(place: BackupDirectory, name: str) -> None:
    """The test flips one bit and then all bits of every byte of every file."""
    backup = chosen(place).id
    file = _file(place, name)
    whole = file.read_bytes()
    noticed = 0
    for at in range(len(whole)):
        for mask in (0x01, 0x20, 0xFF):
            file.write_bytes(whole[:at] + bytes((whole[at] ^ mask,)) + whole[at + 1 :])
            with pytest.raises(BackupDamaged):
                verify(place, chosen(place, backup))
            noticed += 1
    file.write_bytes(whole)
    verify(place, chosen(place, backup))

    assert 3 * len(whole) == noticed


@pytest.mark.parametrize("name", [MANIFEST, part_file(0)])
def test_no_byte_is_missing_or_added_unnoticed(place: BackupDirectory, name: str) -> None:
    """The test cuts each file anywhere, and appends bytes to its end."""
    backup = chosen(place).id
    file = _file(place, name)
    whole = file.read_bytes()
    for content in (*(whole[:size] for size in range(len(whole))), whole + b"\0", whole + b"\n"):
        file.write_bytes(content)
        with pytest.raises(BackupDamaged):
            verify(place, chosen(place, backup))


def test_files_of_two_backups_are_not_taken_for_one(tmp_path: Path) -> None:
    """Another backup's file is valid by itself, but is not the one the manifest names."""
    place = BackupDirectory(tmp_path / "backups")
    worlds = [World(1, seed=seed) for seed in (1, 2)]
    for world in worlds:
        world.live(20)
    first, second = (back_up(world, place, tmp_path / str(n)) for n, world in enumerate(worlds))
    other = Path(place.where, second.id, part_file(0)).read_bytes()
    Path(place.where, first.id, part_file(0)).write_bytes(other)

    with pytest.raises(BackupDamaged, match="not the file that the manifest names"):
        list(rows_of(place, first, first.parts[0]))


def test_a_missing_file_is_reported(place: BackupDirectory) -> None:
    """The error names it."""
    manifest = chosen(place)
    _file(place, part_file(1)).unlink()

    with pytest.raises(BackupFailed, match=r"shard-0001.rows: No such file"):
        verify(place, manifest)


def test_a_damaged_backup_makes_no_node(place: BackupDirectory, tmp_path: Path) -> None:
    """No node can use the directory that was filled before the damage was found."""
    manifest = chosen(place)
    file = _file(place, part_file(1))
    file.write_bytes(file.read_bytes()[:-1])
    into = tmp_path / "data"
    wanted = Wanted(cluster_id="new", shards=2)
    with pytest.raises(BackupDamaged):
        restore([RestoreSource(place=place, manifest=manifest)], wanted, into=into, node_id="a")

    with pytest.raises(DataDirectoryRefused, match="not empty"):
        open_directory(into, cluster_id="new", node_id="a", shards=2)


def test_chunks_keep_rows_of_any_size(tmp_path: Path) -> None:
    """The test has empty rows, many rows in one chunk, and a row as large as many chunks."""
    rows = [(b"k", b""), *((b"%d" % n, bytes(n)) for n in range(3000)), (b"z", bytes(5 * 2**20))]
    stream = b"".join(encoded(rows))

    assert rows == [row for chunk in decoded([stream]) for row in chunk]
    cut = [stream[at : at + 1000] for at in range(0, len(stream), 1000)]
    assert rows == [row for chunk in decoded(cut) for row in chunk]


def test_a_bomb_is_not_inflated() -> None:
    """A chunk must not expand beyond its stated size, nor state an impossible one."""
    content = zlib.compress(bytes(2**22))

    def claiming(raw_size: int) -> bytes:
        place = struct.pack(">QII", 0, len(content), raw_size)
        checksum = blake2b(place + content, digest_size=16).digest()
        return b"CODEQBK1" + struct.pack(">II", len(content), raw_size) + checksum + content

    with pytest.raises(BackupDamaged, match="has not the 64 bytes that it claims"):
        list(decoded([claiming(64)]))
    with pytest.raises(BackupDamaged, match="claims 2147483648 bytes"):
        list(decoded([claiming(2**31)]))
