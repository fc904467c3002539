"""A node's data directory: one owner, one process, every opening counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from codeq_cluster.codec.levels import LEVEL, VIRTUAL_TIME_FROM
from codeq_cluster.codec.membership import Member, Membership, data_of
from codeq_cluster.errors import DataDirectoryRefused, ReleaseTooOld
from codeq_cluster.storage.directory import (
    DataDirectory,
    aside_path,
    held_directory,
    open_directory,
    set_aside,
    stopped_directory,
)
from codeq_cluster.storage.identity import check_time


def opened(path: Path, *, cluster: str = "c", node: str = "n1", shards: int = 2) -> DataDirectory:
    return open_directory(path, cluster_id=cluster, node_id=node, shards=shards)


def test_every_opening_is_a_new_incarnation(tmp_path: Path) -> None:
    """Peers can distinguish a restarted node from its earlier self."""
    for incarnation in (1, 2, 3):
        with opened(tmp_path / "d") as directory:
            assert directory.incarnation & 0xFFFFFFFF == incarnation


def test_every_shard_has_a_place_from_the_start(tmp_path: Path) -> None:
    """The shards' directories exist before the data directory counts as made."""
    with opened(tmp_path / "d") as directory:
        assert directory.shard_path(0).is_dir()
        assert directory.shard_path(1).is_dir()
        assert directory.shard_path(0) != directory.shard_path(1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cluster": "other"}, "made for cluster c, not other"),
        ({"node": "n2"}, "made for node n1, not n2"),
        ({"shards": 3}, "made for shard count 2, not 3"),
    ],
)
def test_another_nodes_directory_is_refused_by_both_values(
    tmp_path: Path, change: dict[str, object], text: str
) -> None:
    """The error names the owner it was made for, and the refusal changes nothing."""
    opened(tmp_path / "d").close()
    before = (tmp_path / "d" / "node.json").read_bytes()
    with pytest.raises(DataDirectoryRefused, match=text):
        opened(tmp_path / "d", **change)  # type: ignore[arg-type]

    assert before == (tmp_path / "d" / "node.json").read_bytes()
    opened(tmp_path / "d").close()


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    """Data of a newer version is left alone."""
    opened(tmp_path / "d").close()
    file = tmp_path / "d" / "node.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"formatVersion": 3}))

    with pytest.raises(DataDirectoryRefused, match="format version 3; this release reads 1"):
        opened(tmp_path / "d")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"nodeId": 5}'])
def test_a_damaged_identity_is_refused(tmp_path: Path, content: str) -> None:
    """The owner of the data is never guessed."""
    opened(tmp_path / "d").close()
    (tmp_path / "d" / "node.json").write_text(content)

    with pytest.raises(DataDirectoryRefused, match=r"node\.json is damaged"):
        opened(tmp_path / "d")


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    """Nothing is written among foreign files."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "holiday.jpg").touch()

    with pytest.raises(DataDirectoryRefused, match=r"it has holiday\.jpg and no node\.json"):
        opened(tmp_path / "d")


def test_data_without_its_identity_is_refused(tmp_path: Path) -> None:
    """A node must not take over the shards of an unknown one."""
    with opened(tmp_path / "d") as directory:
        (directory.shard_path(1) / "CURRENT").touch()
    (tmp_path / "d" / "node.json").unlink()

    with pytest.raises(DataDirectoryRefused, match=r"it has shard-1 and no node\.json"):
        opened(tmp_path / "d")


def test_a_first_use_that_crashed_is_taken_up(tmp_path: Path) -> None:
    """Empty directories, a half-written identity and a mount's own directory are no data."""
    (tmp_path / "d" / "shard-0").mkdir(parents=True)
    (tmp_path / "d" / "lost+found").mkdir()
    (tmp_path / "d" / "node.tmp").write_text("{")

    with opened(tmp_path / "d") as directory:
        assert 1 == directory.incarnation & 0xFFFFFFFF


def test_data_set_aside_leaves_a_directory_of_another_identity(tmp_path: Path) -> None:
    """Nothing is deleted, peers see new data, and a second move aside gets its own name."""
    path = tmp_path / "d"
    with opened(path) as directory:
        before = directory.incarnation >> 32
        (directory.shard_path(1) / "CURRENT").write_text("kept")
    (path / "node.log").write_text("a log")

    for _ in range(2):
        aside = aside_path(path)
        with held_directory(path):
            set_aside(path, aside)
        with opened(path) as directory:
            assert before != directory.incarnation >> 32
            assert not any(directory.shard_path(1).iterdir())

    first, second = sorted(path.glob("damaged-*"))
    assert "kept" == (first / "shard-1" / "CURRENT").read_text()
    assert (second / "node.json").exists()
    assert "a log" == (path / "node.log").read_text()


def test_data_set_aside_by_half_is_refused_until_it_is_done(tmp_path: Path) -> None:
    """A crash on the way leaves no directory that a node would take as its own."""
    path = tmp_path / "d"
    with opened(path) as directory:
        (directory.shard_path(1) / "CURRENT").write_text("kept")
    (path / "damaged-by-half").mkdir()
    (path / "node.json").rename(path / "damaged-by-half" / "node.json")

    with pytest.raises(DataDirectoryRefused, match="not empty"):
        opened(path)
    with held_directory(path):
        set_aside(path, aside_path(path))

    opened(path).close()


def test_a_directory_in_use_is_not_set_aside(tmp_path: Path) -> None:
    """The running node must be stopped first."""
    with (
        opened(tmp_path / "d"),
        pytest.raises(DataDirectoryRefused, match="in use"),
        held_directory(tmp_path / "d"),
    ):
        raise AssertionError("held twice")


def test_a_lost_shard_is_not_recreated(tmp_path: Path) -> None:
    """A node whose log has lost its vote must not vote again."""
    with opened(tmp_path / "d") as directory:
        directory.shard_path(1).rmdir()

    with pytest.raises(DataDirectoryRefused, match="has lost shard-1"):
        opened(tmp_path / "d")


def test_databases_are_made_once(tmp_path: Path) -> None:
    """A start that ended too early leaves them to the next; no later start creates any."""
    with opened(tmp_path / "d") as directory:
        assert not directory.made
    with opened(tmp_path / "d") as directory:
        assert not directory.made
        directory.note_made()
    with opened(tmp_path / "d") as directory:
        assert directory.made


def test_a_directory_opens_once(tmp_path: Path) -> None:
    """A second process gets one line, and the end of the first one frees the directory."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from codeq_cluster.storage.directory import open_directory\n"
        "open_directory(Path(sys.argv[1]), cluster_id='c', node_id='n1', shards=2)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "d")]
    with opened(tmp_path / "d"):
        with pytest.raises(DataDirectoryRefused, match="is in use by another process"):
            opened(tmp_path / "d")
        second = subprocess.run(command, check=False, capture_output=True, text=True)
    third = subprocess.run(command, check=False, capture_output=True, text=True)

    assert 1 == second.returncode
    assert second.stderr.endswith("is in use by another process; stop that one first\n")
    assert (0, "") == (third.returncode, third.stderr)
    with opened(tmp_path / "d") as directory:
        assert 3 == directory.incarnation & 0xFFFFFFFF


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    """The error names the path and the reason."""
    (tmp_path / "f").touch()

    with pytest.raises(DataDirectoryRefused, match="cannot be used"):
        opened(tmp_path / "f" / "d")


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    """A second close does not release the lock of the next process."""
    directory = opened(tmp_path / "d")
    directory.close()
    with opened(tmp_path / "d"):
        directory.close()
        with pytest.raises(DataDirectoryRefused):
            opened(tmp_path / "d")


def test_data_keeps_its_identity(tmp_path: Path) -> None:
    """Any number of openings keeps it; a new directory is other data."""
    with opened(tmp_path / "n1") as directory:
        first = directory.incarnation
    with opened(tmp_path / "n1") as directory:
        second = directory.incarnation
        data = directory.data
    with opened(tmp_path / "wiped") as wiped:
        assert wiped.data != data

    assert second > first
    assert data_of(first) == data_of(second) == data


def test_the_bootstrap_members_are_stored(tmp_path: Path) -> None:
    """The record is written once, and durably."""
    membership = Membership(members=(Member(id="n1", data=7), Member(id="n2", data=8)))
    with opened(tmp_path / "n1") as directory:
        assert directory.bootstrap is None
        directory.note_bootstrap(membership)
        assert membership == directory.bootstrap

    with opened(tmp_path / "n1") as directory:
        assert membership == directory.bootstrap


def test_data_of_a_later_release_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Formats in use only get newer; the refusal names both levels and changes nothing."""
    with opened(tmp_path / "d") as directory:
        directory.use(LEVEL + 1)
        directory.use(LEVEL)
    before = (tmp_path / "d" / "node.json").read_bytes()
    assert LEVEL + 1 == json.loads(before)["level"]
    told = f"formats of level {LEVEL + 1}, and this release knows those up to level {LEVEL}:"
    for _ in range(2):
        with pytest.raises(ReleaseTooOld, match=told):
            opened(tmp_path / "d")
    with pytest.raises(ReleaseTooOld, match=told), stopped_directory(tmp_path / "d"):
        pass

    assert before == (tmp_path / "d" / "node.json").read_bytes()


def _timed(path: Path, virtual_by_ms: int | None) -> DataDirectory:
    return open_directory(path, cluster_id="c", node_id="n1", shards=1, virtual_by_ms=virtual_by_ms)


@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        (0, None, "served virtual time and never serves real time; start it with dev --virtual"),
        (None, 0, "served real time and never serves virtual time; start it without --virtual"),
    ],
)
def test_data_of_one_time_never_serves_the_other(
    tmp_path: Path, first: int | None, then: int | None, text: str
) -> None:
    """Each refusal leaves the data as it was, and its own time goes on."""
    _timed(tmp_path / "d", first).close()
    before = (tmp_path / "d" / "node.json").read_bytes()
    with pytest.raises(DataDirectoryRefused, match=text):
        _timed(tmp_path / "d", then)
    with pytest.raises(DataDirectoryRefused, match=text):
        check_time(tmp_path / "d", virtual=then is not None)

    assert before == (tmp_path / "d" / "node.json").read_bytes()
    _timed(tmp_path / "d", first).close()


def test_virtual_time_never_runs_backwards_over_a_restart(tmp_path: Path) -> None:
    """The data begins with the greater of what it is asked for and what it has shown."""
    with _timed(tmp_path / "d", -500) as directory:
        assert -500 == directory.virtual_by_ms
        directory.note_offset(86_400_000)
    with _timed(tmp_path / "d", 0) as directory:
        assert 86_400_000 == directory.virtual_by_ms
    with _timed(tmp_path / "d", 90_000_000) as directory:
        assert 90_000_000 == directory.virtual_by_ms


def test_a_release_that_knows_no_virtual_time_refuses_its_data(tmp_path: Path) -> None:
    """It would take the data for that of real time; the level in use keeps it away."""
    _timed(tmp_path / "d", 0).close()
    level = json.loads((tmp_path / "d" / "node.json").read_bytes())["level"]

    assert VIRTUAL_TIME_FROM == level
