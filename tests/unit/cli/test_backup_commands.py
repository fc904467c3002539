"""Backup commands: output and exit codes of the commands that need no cluster."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from codeq_cluster.backup.catalogue import new_id
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.manifest import MANIFEST, part_file
from codeq_cluster.cli.main import main
from tests.properties.backup_worlds import NOW_MS, World, back_up


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    """Create three backups of one cluster of three shards."""
    world = World(3, seed=4)
    world.live(80)
    place = BackupDirectory(tmp_path / "backups")
    for n in range(3):
        back_up(world, place, tmp_path / str(n))
    return tmp_path / "backups"


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit code, its output and its notes."""
    code = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_backups_are_listed_with_their_damage(
    backups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table and the JSON have complete, damaged and incomplete backups."""
    whole, damaged, cut = sorted(each.name for each in backups.iterdir())
    (backups / damaged / MANIFEST).write_text("{}")
    (backups / cut / MANIFEST).unlink()
    code, table, _ = said(capsys, "backup", "ls", "--in", backups)
    _, listed, _ = said(capsys, "backup", "ls", "--in", backups, "--json")
    rows = json.loads(listed)["backups"]

    assert 0 == code
    assert all(each in table for each in (whole, damaged, cut, "incomplete", "its format is 0"))
    assert [
        (whole, True),
        (damaged, False),
        (cut, False),
    ] == [(row["id"], row["complete"]) for row in rows]


def test_the_newest_complete_one_is_verified_unless_one_is_named(
    backups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged one ends with 1 and the name of the file."""
    first, second, third = sorted(each.name for each in backups.iterdir())
    (backups / third / MANIFEST).unlink()
    file = backups / first / part_file(2)
    file.write_bytes(file.read_bytes()[:-1] + b"?")

    assert (0, f"{second}\n") == said(capsys, "backup", "verify", "--in", backups)[:2]
    code, _, error = said(capsys, "backup", "verify", first, "--in", backups)
    assert (1, True) == (code, f"{first}/shard-0002.rows: " in error)
    code, _, error = said(capsys, "backup", "verify", "../x", "--in", backups)
    assert (1, True) == (code, "no backup is called that" in error)


def test_a_backup_named_as_its_place_is_told_apart(
    backups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says how to name one backup of a place."""
    backup = min(each.name for each in backups.iterdir())
    code, _, error = said(capsys, "backup", "verify", "--in", backups / backup)

    assert (1, True) == (code, error.endswith(f"name the place that holds it, and {backup}\n"))
    code, _, error = said(capsys, "backup", "verify", "--in", backups.parent)
    assert (1, True) == (code, error.endswith(f"no complete backup in {backups.parent}\n"))


def test_an_export_beside_backups_is_not_taken_for_the_newest_one(
    backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export holds one tenant, so restoring it would lose the others."""
    newest = max(each.name for each in backups.iterdir())
    export = ("backup", "export", "--in", backups, "--tenant", "acme", "--to", backups, "--json")
    made = json.loads(said(capsys, *export)[1])["id"]
    into = ("--node-id", "a", "--into", tmp_path / "data", "--json")
    _, verified, _ = said(capsys, "backup", "verify", "--in", backups)
    _, restored, _ = said(capsys, "restore", "--from", backups, *into)
    _, added, _ = said(
        capsys,
        *("restore", "--from", backups, "--tenant", "zeta", "--import", backups),
        *("--node-id", "a", "--into", tmp_path / "other", "--json"),
    )

    assert made > newest
    assert newest == verified.split()[0]
    assert [newest] == json.loads(restored)["backups"]
    assert [newest, made] == json.loads(added)["backups"]


def test_pruning_says_what_it_would_do_before_it_does(
    backups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--yes` it ends with 2 and deletes nothing; a dry run ends with 0."""
    first, second, third = sorted(each.name for each in backups.iterdir())
    prune = ("backup", "prune", "--in", backups, "--keep")

    assert (2, f"{first}\n{second}\n") == said(capsys, *prune, 1)[:2]
    assert (0, f"{first}\n{second}\n") == said(capsys, *prune, 1, "--yes", "--dry-run")[:2]
    assert 3 == len(list(backups.iterdir()))
    assert 2 == said(capsys, *prune, 0)[0]
    assert (0, f"{first}\n{second}\n") == said(capsys, *prune, 1, "--yes")[:2]
    assert [third] == [each.name for each in backups.iterdir()]
    assert (0, "", "nothing to delete beyond the newest 1\n") == said(capsys, *prune, 1)


def test_a_dry_run_leaves_a_node_s_data_as_it_is(
    backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It wins over `--yes`, and ends with 0."""
    data = tmp_path / "n1"
    restore = ("restore", "--from", backups, "--into", data, "--node-id", "n1")
    assert 0 == said(capsys, *restore)[0]
    before = sorted(each.name for each in data.iterdir())
    repair = said(capsys, "repair", "--data-dir", data, "--yes", "--force", "--dry-run")
    recover = said(capsys, "cluster", "recover", data, "--yes", "--dry-run")

    assert (0, 0) == (repair[0], recover[0])
    assert "would be set aside" in repair[2]
    assert "nothing is changed" in recover[2]
    assert {*before, "LOCK"} == {"LOCK", *(each.name for each in data.iterdir())}


def test_one_tenant_moves_to_another_cluster(
    backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tenant is exported, and imported into the restore of a backup without it."""
    exports = {name: tmp_path / name for name in ("acme", "zeta")}
    made = {}
    for name, place in exports.items():
        code, shown, _ = said(
            capsys,
            *("backup", "export", "--in", backups, "--tenant", name, "--to", place, "--json"),
        )
        assert 0 == code
        made[name] = json.loads(shown)
    code, shown, _ = said(
        capsys,
        *("restore", "--from", exports["acme"], "--import", exports["zeta"], "--node-id", "a"),
        *("--into", tmp_path / "data", "--cluster-id", "new", "--json"),
    )
    done = json.loads(shown)

    assert "acme" == made["acme"]["tenant"]
    assert 0 == code
    assert made["acme"]["tasks"] + made["zeta"]["tasks"] == done["tasks"]
    code, shown, _ = said(capsys, "inspect", tmp_path / "data", "--tasks", "--json")
    tasks = json.loads(shown)["tasks"]
    assert {"acme", "zeta"} == {task["tenant"] for task in tasks}
    assert len(tasks) == done["tasks"]


def test_the_tenants_of_a_backup_are_listed(
    backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default tenant is `_`; a person may call it default, unless a tenant has that name."""
    tenants = json.loads(said(capsys, "backup", "tenants", "--in", backups, "--json")[1])["tenants"]
    code, table, hint = said(capsys, "backup", "tenants", "--in", backups)
    _, verified, _ = said(capsys, "backup", "verify", "--in", backups, "--json")
    export = ("backup", "export", "--in", backups, "--to", tmp_path / "to", "--json", "--tenant")
    exported = json.loads(said(capsys, *export, "default")[1])
    restore = ("restore", "--from", backups, "--node-id", "a", "--tenant", "default", "--json")
    restored = json.loads(said(capsys, *restore, "--into", tmp_path / "data")[1])

    assert ["_", "acme", "zeta"] == [row["tenant"] for row in tenants]
    assert sum(row["tasks"] for row in tenants) == json.loads(verified)["tasks"]
    assert (0, "_ is the default tenant\n") == (code, hint)
    assert "zeta" in table
    assert "_" == exported["tenant"]
    assert tenants[0]["tasks"] == exported["tasks"] == restored["tasks"]


def test_a_tenant_without_any_data_is_an_error(
    backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown tenant gives neither an export nor a data directory."""
    exports = tmp_path / "exports"
    export = ("backup", "export", "--in", backups, "--tenant", "acmee", "--to", exports)
    restore = ("restore", "--from", backups, "--tenant", "acmee", "--node-id", "a")
    for command in (export, (*restore, "--into", tmp_path / "data")):
        code, _, error = said(capsys, *command)
        assert (1, True) == (code, "holds nothing of a tenant acmee" in error)
    advice = said(capsys, *export)[2].partition("; codeq-cluster ")[2]
    code, _, note = said(capsys, *advice.removesuffix(" lists those it holds\n").split())

    assert (0, "_ is the default tenant\n") == (code, note)
    assert {} == BackupDirectory(exports).backups()
    code, _, error = said(capsys, "inspect", tmp_path / "data")
    assert (1, True) == (code, "is no data directory" in error)


def test_a_task_without_a_worker_is_shown_with_an_empty_cell(
    backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row of a stopped node's tasks has as many cells as there are columns."""
    said(capsys, *("restore", "--from", backups, "--node-id", "a", "--into", tmp_path / "data"))
    code, table, _ = said(capsys, "inspect", tmp_path / "data", "--tasks", "--limit", 1000)
    header, *lines = table.splitlines()
    column = header.split().index("WORKER")

    assert 0 == code
    assert {line.split()[column] for line in lines} <= {"-", "ann", "bob"}
    assert "-" in {line.split()[column] for line in lines}


@pytest.mark.parametrize(("arguments"), [("--tasks",), ("--tasks", "--json"), ()])
def test_unread_output_ends_a_command_with_an_error(
    backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """Tables, JSON and short output fail alike; with closed streams the command still runs."""
    said(capsys, *("restore", "--from", backups, "--node-id", "a", "--into", tmp_path / "data"))
    command = [sys.executable, "-m", "codeq_cluster.cli.main", "inspect", tmp_path / "data"]
    command += arguments
    reader, writer = os.pipe()
    os.close(reader)
    unread = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, check=False
    )

    assert (141, b"") == (unread.returncode, unread.stderr)
    assert (0, b"") == (closed.returncode, closed.stderr)


def test_a_restore_refuses_unsuitable_shards_directories_and_backups(
    backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An incompatible or odd number of shards, a used directory and missing backups are refused."""
    restore = ("restore", "--from", backups, "--node-id", "a", "--into", tmp_path / "data")
    code, _, error = said(capsys, *restore, "--shards", 2)
    advice = "restore with 1, 3, or leave these keys out with restore --forget-keys"
    assert (1, True) == (code, advice in error)
    assert 2 == said(capsys, *restore, "--shards", 0)[0]
    assert 2 == said(capsys, *restore, "--shards", 300)[0]
    code, _, error = said(capsys, *restore, "--cluster-id", "a b")
    assert (2, True) == (code, "--cluster-id a b: must be 1 to 64 of" in error)
    assert not (tmp_path / "data").exists()
    code, _, notes = said(capsys, *restore, "--shards", 2, "--forget-keys")
    assert (0, True) == (code, "idempotency keys are left out" in notes)
    code, _, error = said(capsys, *restore)
    assert (1, True) == (code, "is a node's already" in error)
    code, _, error = said(
        capsys,
        *("restore", "--from", tmp_path / "nothing", "--node-id", "a", "--into", tmp_path / "b"),
    )
    assert (1, True) == (code, "nothing: there is no such directory" in error)
    code, _, error = said(
        capsys, *("restore", "--from", tmp_path, "--node-id", "a", "--into", tmp_path / "b")
    )
    assert (1, True) == (code, "there is no complete backup" in error)
    assert 2 == said(capsys, "backup", "ls", "--in", "s3://")[0]


def test_inspect_accepts_only_a_data_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing directory, or another one, is refused and not created."""
    for path in (tmp_path, tmp_path / "nothing"):
        code, _, error = said(capsys, "inspect", path)

        assert (1, True) == (code, "is no data directory" in error)
    assert [] == list(tmp_path.iterdir())
    assert 2 == said(capsys, "inspect", tmp_path, "--limit", 0)[0]


def test_a_shard_that_a_directory_does_not_have_is_no_empty_list(
    backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error lists the shards that exist."""
    data = tmp_path / "data"
    said(capsys, *("restore", "--from", backups, "--node-id", "a", "--into", data, "--shards", 3))
    for shard, code in ((-1, 2), (0, 0), (2, 0), (3, 2)):
        found, _, error = said(capsys, "inspect", data, "--tasks", f"--shard={shard}")
        assert (code, code == 2) == (found, "must be 0 to 2" in error)


def test_a_terminal_shows_a_bar(backups: Path) -> None:
    """The bar is on standard error, and the id on standard output."""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "codeq_cluster.cli.main", "backup", "verify", "--in", backups],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        check=True,
    )
    os.close(theirs)
    drawn = os.read(ours, 65_536).decode()
    os.close(ours)

    assert "verifying" in drawn
    assert done.stdout.decode().strip() in {each.name for each in backups.iterdir()}


def test_an_id_sorts_by_time() -> None:
    """Two ids of the same second sort by time as well."""
    assert new_id(NOW_MS) < new_id(NOW_MS + 1) < new_id(NOW_MS + 999)
