"""Backups over HTTP: started on a running node, watched, kept and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace as replace_fields

from codeq_cluster.backup.catalogue import chosen, rows_of, verify
from codeq_cluster.backup.create import write_manifest
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.manifest import MANIFEST
from codeq_cluster.cli.main import main
from codeq_cluster.cli.operate import importing
from codeq_cluster.codec import keyspace, levels
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.settings import BackupSettings, LimitSettings
from tests.integration.http.client import OPERATOR, Client, eventually, serving, single
from tests.integration.http.operating import walked

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEEP = 2


@pytest_asyncio.fixture(loop_scope="session")
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """Run a node that keeps backups below `tmp_path`."""
    settings = replace(
        single(tmp_path / "node", LimitSettings()),
        backup=BackupSettings(directory=tmp_path / "backups", keep=KEEP),
    )
    async with serving(settings) as running:
        yield running


async def ended(client: Client, backup: str) -> dict[str, Any]:
    """Poll until a backup has ended."""
    answer = await eventually(
        lambda: client.get(f"admin/backup/{backup}", token=OPERATOR),
        lambda answer: answer.json["status"] in ("DONE", "FAILED"),
    )
    return answer.json


async def taken(client: Client) -> dict[str, Any]:
    """Take a backup as soon as no other one is running."""
    answer = await client.post("admin/backup", token=OPERATOR)
    assert 202 == answer.status, answer
    return await ended(client, str(answer.json["id"]))


async def test_a_node_without_a_place_takes_none(node: Client) -> None:
    """Every backup route answers that the node has no place for backups."""
    answers = [
        await node.post("admin/backup", token=OPERATOR),
        await node.get("admin/backup", token=OPERATOR),
        await node.get("admin/backup/20260131T123000000Z-5f0c4a2e", token=OPERATOR),
    ]

    assert [(409, "no-backup-place")] * 3 == [(each.status, each.json["code"]) for each in answers]


async def test_a_backup_holds_every_acknowledged_task(client: Client, tmp_path: Path) -> None:
    """The backup holds every task acknowledged before it, and is listed, verified and recorded."""
    ids = {await client.create(idempotencyKey=f"k{n}") for n in range(20)}
    done = await taken(client)
    place = BackupDirectory(tmp_path / "backups")
    manifest = chosen(place)
    held = {
        keyspace.last_id(key)
        for part in manifest.parts
        for rows in rows_of(place, manifest, part)
        for key, _ in rows
        if keyspace.family(key) is Family.TASK
    }

    assert ("DONE", 2, 20) == (done["status"], done["shardsDone"], done["tasks"])
    assert ids == held
    [kept] = (await client.get("admin/backup", token=OPERATOR)).json["backups"]  # type: ignore[misc]
    assert (done["id"], True, 20) == (kept["id"], kept["complete"], kept["tasks"])
    [record, *_] = await walked(client, "admin/audit?limit=500", "records")
    assert ("backup.create", done["id"]) == (record["action"], record["target"])
    assert not (tmp_path / "node" / "backup").exists()


async def test_an_import_of_newer_formats_than_the_cluster_uses_is_refused(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A newer release's command is refused too; the refusal says what to do first."""
    await client.create("kept")
    backup = str((await taken(client))["id"])
    place, newer = BackupDirectory(tmp_path / "backups"), levels.LEVEL + 1
    write_manifest(place, replace_fields(chosen(place, backup), level=newer))
    monkeypatch.setattr(levels, "LEVEL", newer)
    move = ["import", str(tmp_path / "backups"), "--id", backup, "--tenant", "acme"]
    here = ["--url", f"http://127.0.0.1:{client.port}", "--token", "acme"]
    code = await asyncio.to_thread(main, [*move, *here])

    assert 4 == code
    assert f"the cluster uses those up to level {newer - 1}" in (said := capsys.readouterr().err)
    assert "have an operator let it use them first, by cluster upgrade" in said


async def test_only_one_is_taken_at_a_time(client: Client) -> None:
    """A second one is refused until the first has ended."""
    first, second = await asyncio.gather(
        client.post("admin/backup", token=OPERATOR), client.post("admin/backup", token=OPERATOR)
    )
    begun, refused = sorted((first, second), key=lambda each: each.status)

    assert (202, 409) == (begun.status, refused.status)
    assert ("backup-running", True) == (refused.json["code"], refused.json["retryable"])
    assert "DONE" == (await ended(client, str(begun.json["id"])))["status"]
    assert "DONE" == (await taken(client))["status"]


async def test_retention_deletes_the_oldest_and_no_more(client: Client, tmp_path: Path) -> None:
    """Old backups are deleted after the new one is verified; a damaged one is kept."""
    first = await taken(client)
    damaged = await taken(client)
    file = tmp_path / "backups" / damaged["id"] / MANIFEST
    file.write_bytes(file.read_bytes().replace(b"n1", b"n2"))
    later = [await taken(client) for _ in range(KEEP)]
    place = BackupDirectory(tmp_path / "backups")

    assert [[], [first["id"]]] == [each["deleted"] for each in later]
    assert {damaged["id"], *(each["id"] for each in later)} == set(place.backups())
    verify(place, chosen(place))
    listed: Any = (await client.get("admin/backup", token=OPERATOR)).json["backups"]
    problems = {each["id"]: "problem" in each for each in listed}
    assert {damaged["id"]: True} | {each["id"]: False for each in later} == problems


async def test_a_place_that_cannot_be_written_fails_the_backup(
    client: Client, tmp_path: Path
) -> None:
    """The node keeps serving, and the next backup succeeds."""
    (tmp_path / "backups").write_text("no directory")
    failed = await taken(client)
    listed = await client.get("admin/backup", token=OPERATOR)
    (tmp_path / "backups").unlink()

    assert "FAILED" == failed["status"]
    assert "Not a directory" in failed["error"] or "File exists" in failed["error"]
    assert (503, "backup-place-failed") == (listed.status, listed.json["code"])
    assert "DONE" == (await taken(client))["status"]


async def test_an_unknown_backup_is_not_found(client: Client) -> None:
    """Neither an unknown id nor an invalid one is found."""
    for name in ("20260131T123000000Z-5f0c4a2e", "..", "a%2Fb"):
        answer = await client.get(f"admin/backup/{name}", token=OPERATOR)

        assert 404 == answer.status


async def test_a_backup_of_an_earlier_run_is_known(tmp_path: Path) -> None:
    """A restarted node lists the backups in its directory."""
    settings = replace(
        single(tmp_path / "node", LimitSettings()),
        backup=BackupSettings(directory=tmp_path / "backups"),
    )
    async with serving(settings) as client:
        await client.create()
        before = await taken(client)
    async with serving(settings) as client:
        after = (await client.get(f"admin/backup/{before['id']}", token=OPERATOR)).json

    assert ("DONE", 1, "n1") == (after["status"], after["tasks"], after["node"])


async def test_a_stop_in_the_middle_leaves_no_backup(tmp_path: Path) -> None:
    """A backup ends with its node, and its remains do not count as a backup."""
    settings = replace(
        single(tmp_path / "node", LimitSettings()),
        backup=BackupSettings(directory=tmp_path / "backups", bytes_per_second=1),
    )
    async with serving(settings) as client:
        await client.create(payload="x" * 1000)
        answer = await client.post("admin/backup", token=OPERATOR)
        assert 202 == answer.status
    place = BackupDirectory(tmp_path / "backups")

    assert {} == place.backups()


async def test_an_import_brings_held_tasks_after_all_others(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a unique key comes after its holder, in whatever request that one comes."""
    monkeypatch.setattr(importing, "_TASKS", 1)
    keys = [f"u{n}" for n in range(6)]
    for key in keys:
        unique = {"key": key, "on": "keepLast"}
        await client.create("kept-last", unique=unique)
        await client.post("tasks/claim", {"commands": ["kept-last"]})
        await client.create("kept-last", unique=unique)
    await taken(client)
    move = ["import", str(tmp_path / "backups"), "--tenant", "acme", "--as", "other"]
    here = ["--url", f"http://127.0.0.1:{client.port}", "--token", "other"]
    code = await asyncio.to_thread(main, [*move, *here])
    stats = (await client.get("admin/queues/kept-last", token="other")).json

    assert 0 == code
    assert (len(keys), len(keys)) == (stats["held"], stats["inProgress"])
