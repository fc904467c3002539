"""What every release has left behind is read by this one; `release` says how it was made.

The releases are those in `releases/`, and this one, whose files are made for the test.
"""

from __future__ import annotations

import json
import secrets
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.backup.catalogue import chosen, verify
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.core.items import KIND_OF
from codeq_cluster.offline.inspect import stopped_node
from codeq_cluster.raft import messages as raft
from codeq_cluster.wire.frames import FrameReader
from codeq_cluster.wire.handshake import Accepting
from codeq_cluster.wire.messages import (
    Failure,
    Message,
    RaftMessage,
    RpcAnswer,
    RpcRequest,
    pack,
    parse_bundle,
)

from .release import (
    ARCHIVE,
    CLUSTER,
    EXPECTED,
    SHARDS,
    SPOKEN,
    STAMP,
    STORED,
    MovedClock,
    Places,
    answers,
    identity,
    make,
    running,
    settings_of,
    stored_releases,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

THIS = "this release"
RELEASES = [THIS, *stored_releases()]


@dataclass(frozen=True, slots=True)
class Left:
    """A release's files, unpacked, and what its own node said about them."""

    places: Places
    expected: dict[str, Any]

    @property
    def clock(self) -> MovedClock:
        """The time at which the files were made: leases, timers and retention depend on it."""
        return MovedClock(self.expected["made_ms"])


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=RELEASES)
async def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Path]:
    """Return the directory with one release's two files."""
    if request.param != THIS:
        yield STORED / request.param
        return
    into = tmp_path_factory.mktemp("release")
    await make(into)
    yield into


@pytest.fixture
def left(made: Path, tmp_path: Path) -> Left:
    """Return a fresh copy of what the release left behind."""
    with tarfile.open(made / ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return Left(Places(tmp_path), json.loads((made / EXPECTED).read_text()))


async def test_every_row_and_entry_is_read(left: Left) -> None:
    """The directory is that of a killed node, so the last entries are in its logs alone."""
    with stopped_node(left.places.data) as node:
        tasks = {task.id: task.state.name for _, task in node.tasks()}
        kinds = {KIND_OF[type(item)] for _, item in node.items()}
        entries = Counter(entry.kind for _, entry in node.log())
        shards = {shard for shard, _ in node.tasks()}

    assert set(left.expected["tasks"]) >= set(tasks)
    assert {task: left.expected["tasks"][task] for task in tasks} == tasks
    assert set(left.expected["kinds"]) == kinds
    assert set(range(SHARDS)) == shards
    assert {"batch", "members", "no-op"} == set(entries)


async def test_a_node_goes_on_with_the_data(left: Left) -> None:
    """It says of every task, result and file what the release's own node said, and works on."""
    tasks = left.expected["tasks"]
    async with running(settings_of(left.places), left.clock) as (_, client):
        said = await answers(client, tasks)
        claimed = [await client.claim("waiting") for _ in range(3)]
        done = [
            await client.post(f"tasks/{task['id']}/result", {"status": "COMPLETED", "result": {}})
            for task in claimed
        ]

    assert left.expected["answers"] == said
    assert [200] * 3 == [each.status for each in done]
    assert {"READY"} == {tasks[task["id"]] for task in claimed}


async def test_its_backup_is_restored(left: Left, tmp_path: Path) -> None:
    """The new cluster then says of every task in it what the release's node said."""
    place = BackupDirectory(left.places.backups)
    manifest = chosen(place)
    unreadable = verify(place, manifest)
    into = tmp_path / "restored"
    wanted = Wanted(cluster_id=CLUSTER, shards=SHARDS)
    source = RestoreSource(place=place, manifest=manifest)
    done = restore([source], wanted, into=into / "data", node_id="n1")
    later = {task for task in left.expected["tasks"] if _command(left, task).startswith("late.")}
    kept = {task: state for task, state in left.expected["tasks"].items() if task not in later}
    left.places.artifacts.rename(into / "artifacts")
    async with running(settings_of(Places(into)), left.clock) as (_, client):
        said = await answers(client, kept)

    assert (0, 0) == (unreadable, done.unreadable)
    assert len(kept) == done.tasks
    for path in said:
        if path.startswith(("tasks/", "/")):
            assert left.expected["answers"][path] == said[path]


def _command(left: Left, task: str) -> str:
    command: str = left.expected["answers"][f"tasks/{task}"]["command"]
    return command


async def test_its_page_sessions_are_open(left: Left) -> None:
    """The browser's cookie and its token against forged requests still count."""
    session = left.expected["session"]
    headers = {"Cookie": session["cookie"]}
    async with running(settings_of(left.places), left.clock) as (_, client):
        read = await client.get("/ui/api/topics", token="", **headers)
        written = await client.send(
            "POST",
            "/ui/api/queues/paused/resume",
            b"",
            token="",
            X_CSRF_Token=session["csrf"],
            Content_Type="application/json",
            **headers,
        )

    assert (200, 200) == (read.status, written.status)


async def test_its_side_of_the_link_is_understood(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the nonce of the recorded handshake, this release answers byte for byte the same."""
    said = {name: bytes.fromhex(text) for name, text in left.expected["link"].items()}
    nonce = said["challenge"].split(b"\x58\x20", 1)[1][:32]
    monkeypatch.setattr(secrets, "token_bytes", lambda _count: nonce)
    accepting = Accepting(identity("n2"), {"n1"}, lambda *_: None)
    challenge, _ = accepting.receive(said["hello"])
    welcome, session = accepting.receive(said["proof"])
    assert session is not None
    reader = FrameReader()
    reader.secure(session.receive_key, frame_bytes_max=2**20)
    reader.feed(said["frames"])
    messages: list[Message] = []
    while (body := reader.next()) is not None:
        messages += parse_bundle(body)
    spoken = [raft.parse(each.message) for each in messages if isinstance(each, RaftMessage)]
    rest = [each for each in messages if not isinstance(each, RaftMessage)]

    assert (said["challenge"], said["welcome"]) == (challenge, welcome)
    assert ("n1", 7, 3, "n1:7000") == (
        session.peer,
        session.incarnation,
        session.number,
        session.address,
    )
    assert [raft.render(each, **STAMP) for each in SPOKEN] == [
        raft.render(each, **STAMP) for each in spoken
    ]
    assert {(each.incarnation, each.seq) for each in spoken} == {(2**63, 7)}
    assert [
        RpcRequest(9, "operate", 0.5, pack([1, b"x", None])),
        RpcAnswer(9, pack({"a": "b"})),
    ] == (rest[:2])
    assert isinstance(rest[2], Failure)
