"""Places: written files are read back, and failed writes are invisible."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import pytest

from codeq_cluster.backup.catalogue import chosen, new_id, prunable, verify
from codeq_cluster.backup.catalogue import found as found_in
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.manifest import MANIFEST
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.errors import BackupFailed
from tests.contracts.backup.conftest import bucket_of
from tests.properties.backup_worlds import NOW_MS, World, back_up
from tests.properties.test_backups import compared, restored_rows

MIB = 2**20
DAY_MS = 24 * 3600 * 1000


class Interrupted(Exception):
    """The failure of a test's source."""


def failing(count: int) -> Iterator[bytes]:
    """Yield `count` MiB, then fail."""
    for _ in range(count):
        yield bytes(MIB)
    raise Interrupted


@pytest.mark.parametrize("count", [0, 1, 40])
def test_a_written_file_is_read_back(place: BackupTarget, count: int) -> None:
    """A file is the same after one request or many parts, and an empty one is too."""
    backup = new_id(NOW_MS)
    pieces = [bytes([n]) * MIB for n in range(count)]
    place.write(backup, "shard-0000.rows", iter(pieces))

    assert b"".join(pieces) == b"".join(place.read(backup, "shard-0000.rows"))
    assert {backup: frozenset({"shard-0000.rows"})} == place.backups()


@pytest.mark.parametrize("count", [1, 40])
def test_a_file_is_written_while_it_is_read(place: BackupTarget, count: int) -> None:
    """Copying within one place works, as in an export within one bucket."""
    first, second = new_id(NOW_MS), new_id(NOW_MS + 1)
    pieces = [bytes([n]) * MIB for n in range(count)]
    place.write(first, "shard-0000.rows", iter(pieces))
    place.write(second, "shard-0000.rows", place.read(first, "shard-0000.rows"))

    assert b"".join(pieces) == b"".join(place.read(second, "shard-0000.rows"))


@pytest.mark.parametrize("count", [0, 1, 40])
def test_a_write_that_fails_in_the_middle_leaves_nothing(place: BackupTarget, count: int) -> None:
    """The source's own error is raised, and neither a file nor a part of one remains."""
    backup = new_id(NOW_MS)
    with pytest.raises(Interrupted):
        place.write(backup, "shard-0000.rows", failing(count))

    assert "shard-0000.rows" not in place.backups().get(backup, ())
    with pytest.raises(BackupFailed):
        list(place.read(backup, "shard-0000.rows"))


def test_a_backup_is_deleted_whole_and_alone(place: BackupTarget) -> None:
    """The others stay, and deleting a missing one is no error."""
    first, second = new_id(NOW_MS), new_id(NOW_MS + 1)
    for backup in (first, second):
        for file in (MANIFEST, "shard-0000.rows"):
            place.write(backup, file, iter((b"x",)))
    place.delete(first)
    place.delete(first)

    assert {second: frozenset({MANIFEST, "shard-0000.rows"})} == place.backups()


def test_two_nodes_may_delete_backups_at_once(place: BackupTarget) -> None:
    """Neither fails, nor does one who lists them meanwhile."""
    backups = [new_id(NOW_MS + n) for n in range(40)]
    for backup in backups:
        for file in (MANIFEST, *(f"shard-{n:04}.rows" for n in range(5))):
            place.write(backup, file, iter((b"x",)))

    def delete() -> None:
        for backup in backups:
            place.delete(backup)

    def look() -> None:
        while found_in(place):
            pass

    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(work) for work in (delete, delete, look, look)]:
            each.result()

    assert {} == place.backups()


def test_a_directory_without_a_backup_is_left_alone(place: BackupTarget) -> None:
    """Other files of the target are not listed."""
    place.write("notes", "readme", iter((b"x",)))

    assert {} == place.backups()


def test_a_whole_backup_goes_there_and_comes_back(place: BackupTarget, tmp_path: Path) -> None:
    """A backup is taken, verified and restored with either kind of target."""
    world = World(3, seed=5)
    world.live(60)
    manifest = back_up(world, place, tmp_path)
    verify(place, chosen(place))
    into = tmp_path / "data"
    wanted = Wanted(cluster_id="new", shards=3)
    restore([RestoreSource(place=place, manifest=manifest)], wanted, into=into, node_id="a")

    assert [manifest] == [each.manifest for each in found_in(place)]
    assert compared(world.rows()) == compared(restored_rows(into, 3))


def test_retention_keeps_the_newest_and_those_possibly_in_progress(
    place: BackupTarget, tmp_path: Path
) -> None:
    """It deletes older complete backups, and incomplete ones that no node can still be writing."""
    world = World(1, seed=2)
    kept = [back_up(world, place, tmp_path / str(n)).id for n in range(3)]
    old, young = new_id(NOW_MS - 2 * DAY_MS), new_id(NOW_MS - DAY_MS // 2)
    for backup in (old, young):
        place.write(backup, "shard-0000.rows", iter((b"x",)))
    going = [each.id for each in prunable(place, keep=2, now_ms=NOW_MS)]

    assert sorted([old, min(kept)]) == going


def test_a_bucket_that_is_away_or_missing_is_an_error(s3_server: object) -> None:
    """A refused connection and a missing bucket each raise the error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = bucket_of(f"http://127.0.0.1:{probe.getsockname()[1]}", timeout_ms=500)
    missing = bucket_of(s3_server.endpoint, name="no-such-bucket")  # type: ignore[attr-defined]

    for place in (nobody, missing):
        with pytest.raises(BackupFailed, match=r"backups in s3://"):
            place.backups()
        with pytest.raises(BackupFailed, match=r"backups in s3://"):
            list(place.read(new_id(NOW_MS), MANIFEST))
    # The source is not read further, however much more it would yield.
    with pytest.raises(BackupFailed, match=r"backups in s3://.*writing"):
        nobody.write(new_id(NOW_MS), "shard-0000.rows", repeat(bytes(MIB)))


def test_a_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Backups contain payloads, so no other user may read the directory."""
    place = BackupDirectory(tmp_path / "backups")
    backup = new_id(NOW_MS)
    place.write(backup, MANIFEST, iter((b"x",)))
    home = tmp_path / "backups" / backup

    assert 0o700 == home.stat().st_mode & 0o777
    assert 0o600 == (home / MANIFEST).stat().st_mode & 0o777
