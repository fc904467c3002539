"""Release: what one release leaves behind: data, a backup, a page session, bytes of the link.

`python -m tests.golden.release` writes it into `releases/<version>/` with the package itself, once
for each release. The tests beside this file read every one that is there, and
`tests/acceptance/test_upgrades.py` runs its nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import codeq_cluster
from codeq_cluster import __version__
from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State
from codeq_cluster.node.compose import Node
from codeq_cluster.raft import messages as raft
from codeq_cluster.settings import (
    ArtifactProvider,
    ArtifactSettings,
    AuthProviderSettings,
    AuthSettings,
    BackupSettings,
    LimitSettings,
    NodeSettings,
    PeerAddress,
    StaticToken,
    StoreSettings,
    WebhookSettings,
)
from codeq_cluster.testing.ports import free_ports
from codeq_cluster.wire.frames import FrameWriter
from codeq_cluster.wire.handshake import Accepting, Dialling, LinkIdentity, LinkSession
from codeq_cluster.wire.messages import (
    answer_item,
    bundle,
    failure_item,
    pack,
    raft_item,
    request_item,
)
from tests.integration.http.asides import set_aside
from tests.integration.http.client import Client, eventually, ready

STORED = Path(__file__).parent / "releases"
ARCHIVE, EXPECTED, PACKAGE = "files.tar.xz", "expected.json", "package.tar.xz"
RELAYED = 8  # Of two shards, each has one of so many; all but certainly.
TOKEN, OPERATOR, PAGE_ADMIN = "acme", "operator", "page"
SHARDS = 2
SECRET = "a secret that no cluster has"
CLUSTER = "release"

# Lists whose answers depend on stored rows alone, and not on the time of the question.
LISTS = (
    "admin/topics",
    "admin/aside",
    "admin/audit?limit=500",
    "admin/deliveries",
    "workers/subscriptions",
)


class MovedClock:
    """The machine's clocks, from another instant on.

    Args:
        now_ms: The wall's time now, Unix milliseconds.
    """

    def __init__(self, now_ms: int) -> None:
        self._ahead_ms = now_ms - time.time_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds that never jump."""
        return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of a node, all below `root`."""

    root: Path

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.root / "data"

    @property
    def artifacts(self) -> Path:
        """The files of results."""
        return self.root / "artifacts"

    @property
    def backups(self) -> Path:
        """The backups."""
        return self.root / "backups"


def settings_of(places: Places, *, attempts: int = 5) -> NodeSettings:
    """Return the settings of a cluster of one node; `attempts` are those of a callback."""
    scopes = (*sorted(WORKER_SCOPES), "codeq:admin")
    tokens = AuthProviderSettings(
        kind="static",
        tokens=(
            StaticToken(token=TOKEN, subject="w", tenant="acme", scopes=scopes, event_types=("*",)),
            StaticToken(token=PAGE_ADMIN, subject="p", tenant="acme", scopes=("codeq:admin",)),
            StaticToken(token=OPERATOR, subject="o", tenant="acme", scopes=("codeq:operator",)),
        ),
    )
    [port] = free_ports(1)
    return NodeSettings(
        node_id="n1",
        cluster_id=CLUSTER,
        cluster_secret=SECRET,
        peers=(PeerAddress(id="n1", link=f"127.0.0.1:{port}", http="http://127.0.0.1"),),
        data_dir=places.data,
        port=0,
        link_port=port,
        shards=SHARDS,
        store=StoreSettings(block_cache_bytes=2**20, memtable_bytes=2**20),
        limits=replace(LimitSettings(), drain_ms=0),
        auth=AuthSettings(producer=(tokens,), worker=(tokens,)),
        webhooks=WebhookSettings(
            allow_private=True,
            hmac_secret=SECRET,
            max_attempts=attempts,
            base_backoff_seconds=3600,
            max_backoff_seconds=3600,
        ),
        artifacts=ArtifactSettings(provider=ArtifactProvider.LOCAL, directory=places.artifacts),
        backup=BackupSettings(directory=places.backups, keep=2),
    )


@contextlib.asynccontextmanager
async def running(settings: NodeSettings, clock: MovedClock) -> AsyncIterator[tuple[Node, Client]]:
    """Run a node at another time until the end of the block; yield it with a client."""
    node = Node(settings, clock=clock)
    await node.start()
    client = Client(node.port, token=TOKEN)
    try:
        await ready(client)
        yield node, client
    finally:
        for writer in client.open:
            writer.close()
        await node.stop()


async def answers(client: Client, tasks: Mapping[str, str]) -> dict[str, Any]:
    """Return what the node says about these tasks, their results and files, and in all lists.

    Args:
        client: Of the node.
        tasks: By id, the state of each.
    """
    said: dict[str, Any] = {}
    for task_id, state in sorted(tasks.items()):
        said[f"tasks/{task_id}"] = (await client.get(f"tasks/{task_id}")).json
        if state in ("DONE", "FAILED", "DEAD"):
            path = f"tasks/{task_id}/result"
            result: Any = (await client.get(path)).json
            said[path] = result
            for artifact in result["result"].get("artifacts", ()):
                content = await client.get(artifact["url"])
                said[artifact["url"]] = content.body.decode()
    for path in LISTS:
        said[path] = (await client.get(path)).json
    return said


async def make(into: Path) -> None:
    """Write what this release leaves behind into an empty directory."""
    with tempfile.TemporaryDirectory() as scratch:
        places = Places(Path(scratch) / "node")
        places.root.mkdir()
        expected = await _lived(places, Path(scratch) / "copy")
        with tarfile.open(into / ARCHIVE, "w:xz", preset=9) as archive:
            archive.add(Path(scratch) / "copy", arcname=".")
    expected["link"] = {name: content.hex() for name, content in link_transcript().items()}
    text = json.dumps(expected, indent=1, sort_keys=True, ensure_ascii=False)
    (into / EXPECTED).write_text(f"{text}\n")


def pack_release(into: Path) -> None:
    """Write this release's package, for nodes that run it beside later ones."""

    def source(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "__pycache__" in found.name else found

    package = Path(codeq_cluster.__file__).parent
    with tarfile.open(into / PACKAGE, "w:xz", preset=9) as archive:
        archive.add(package, arcname=package.name, filter=source)


def unpack_release(version: str, directory: Path) -> Path:
    """Unpack a stored release's package into a directory; nodes can run it from there."""
    with tarfile.open(STORED / version / PACKAGE) as archive:
        archive.extractall(directory, filter="data")
    return directory


def place_of(version: str) -> Path:
    """Return the directory for a release's files; a tree under development has none."""
    if "dev" in version:
        raise SystemExit(f"{version} is not a release: CONTRIBUTING.md says how one is cut")
    return STORED / version


def stored_releases() -> list[str]:
    """Return the versions of the stored releases."""
    return sorted(each.name for each in STORED.glob("*/"))


async def _lived(places: Places, copy: Path) -> dict[str, Any]:
    """Live through every kind of state; copy the files of the running node, as after a kill."""
    clock = MovedClock(time.time_ns() // 1_000_000)
    tasks: dict[str, str] = {}
    async with running(settings_of(places, attempts=1), clock) as (_, client):
        await _govern(client)
        await _schedule(client, tasks)
        await _group(client, tasks)
        await _depend(client, tasks)
        await _end(client, tasks)
        await _follow(client, tasks)
        await eventually(
            lambda: client.get("admin/deliveries"), lambda answer: answer.json["deliveries"]
        )
    async with running(settings_of(places), clock) as (node, client):
        await _wait(node, client, tasks)
        await _share(client, tasks)
        await _unite(client, tasks)
        await _stride(client, tasks)
        await _report(client, tasks)
        asked = await client.post("admin/backup", token=OPERATOR)
        assert 202 == asked.status, asked.body
        backup = str(asked.json["id"])
        await eventually(
            lambda: client.get(f"admin/backup/{backup}", token=OPERATOR),
            lambda answer: answer.json["status"] == "DONE",
        )
        session = await client.send(
            "POST",
            "/ui/api/session",
            json.dumps({"token": PAGE_ADMIN}).encode(),
            token="",
            Content_Type="application/json",
        )
        assert 200 == session.status, session.body
        cookie = re.match(r"[^;]*", session.headers["set-cookie"])
        assert cookie is not None
        # These entries are in the logs alone: the next spill of a shard is up to a second away.
        for n in range(4):
            task = await client.create(f"late.{n}", payload={"n": n})
            tasks[task] = State.READY.name
        said = await answers(client, tasks)
        shutil.copytree(places.root, copy)
        return {
            "version": __version__,
            # A walk is over an entry or two after it has begun.
            "kinds": sorted(set(ItemKind) - {ItemKind.WALK}),
            "made_ms": clock.wall_ms(),
            "tasks": tasks,
            "answers": said,
            "backup": backup,
            "session": {"cookie": cookie[0], "csrf": session.json["csrf"]},
        }


async def _govern(client: Client) -> None:
    """Make topics, a pause, a subscription, a webhook key and a bulk job."""
    for name, topic in (
        ("Ended", {"retentionSeconds": 7200, "deadLetterTopicRef": "graves", "weight": 3}),
        ("waiting", {"maxAttempts": 7, "priorityTiers": [1, 5, 9]}),
    ):
        answer = await client.send("PUT", f"admin/topics/{name}", json.dumps(topic).encode())
        assert answer.status in (200, 201), answer.body
    for path, body in (
        ("admin/queues/paused/pause", {}),
        ("admin/webhooks/keys/rotate", {"overlapSeconds": 3600}),
        ("admin/bulk", {"select": {"command": "nobody.creates.this"}, "action": "cancel"}),
        (
            "workers/subscriptions",
            {
                "callbackUrl": "http://127.0.0.1:9/ready",
                "eventTypes": ["nobody.creates.this"],
                "ttlSeconds": 3600,
            },
        ),
    ):
        done = await client.post(path, body)
        assert done.status in (200, 201, 202), (path, done.body)


async def _schedule(client: Client, tasks: dict[str, str]) -> None:
    """Make schedules of both kinds, of which one has a run."""
    task = {"command": "nobody.claims.this", "payload": {}}
    for name, when in (("yearly", {"cron": "0 0 1 1 *"}), ("rarely", {"every": "300d"})):
        body = json.dumps({**when, "task": task, "overlap": "queue"}).encode()
        made = await client.send("PUT", f"admin/schedules/{name}", body)
        assert 201 == made.status, made.body
    run = await client.post("admin/schedules/yearly/trigger", {"idempotencyKey": "first"})
    assert "created" == run.json["outcome"], run.body
    tasks[str(run.json["taskId"])] = State.READY.name


async def _group(client: Client, tasks: dict[str, str]) -> None:
    """Make a group with a member, and one that has ended."""
    task = {"command": "nobody.claims.this", "payload": {}}
    for name, members in (("import-7", [task]), ("import-6", [])):
        body = {"id": name, "then": task, "tasks": members, "seal": True}
        made = await client.post("groups", body)
        assert 202 == made.status, made.body
        for each in made.json.get("tasks", ()):
            tasks[str(each["id"])] = State.READY.name
        if "thenTaskId" in made.json:
            tasks[str(made.json["thenTaskId"])] = State.READY.name


async def _depend(client: Client, tasks: dict[str, str]) -> None:
    """Make a graph with a key whose first task has failed, and one that waits."""
    task = {"command": "nobody.claims.this", "payload": {}}
    first = {"ref": "a", "command": "ends.first", "payload": {}}
    then = {"ref": "b", **task, "dependsOn": [{"ref": "a", "runIf": "failed"}]}
    last = {"ref": "c", **task, "dependsOn": ["b", {"ref": "a", "runIf": "ended"}]}
    body = {"tasks": [first, then, last], "idempotencyKey": "graph-7"}
    made = await client.post("tasks/graph", body)
    assert 202 == made.status, made.body
    ids = [str(each["id"]) for each in made.json["tasks"]]
    cancelled = await client.post(f"tasks/{ids[0]}/cancel", {})
    assert 200 == cancelled.status, cancelled.body
    tasks |= dict(zip(ids, (State.FAILED.name, State.READY.name, State.HELD.name), strict=True))


async def _share(client: Client, tasks: dict[str, str]) -> None:
    """Make two tasks of one key, of which one may run, and one of a queue with a limit."""
    rule = {"flow": {"perKey": {"maxRunning": 1}}}
    answer = await client.send("PUT", "admin/topics/shared", json.dumps(rule).encode())
    assert answer.status in (200, 201), answer.body
    await eventually(
        lambda: client.get("admin/topics/shared"), lambda found: "settling" not in found.json
    )
    own = json.dumps({"maxRunning": 2}).encode()
    answer = await client.send("PUT", "admin/queues/shared/keys/customer-8", own)
    assert 200 == answer.status, answer.body
    tasks[await client.create("shared", key="customer/7")] = State.READY.name
    tasks[await client.create("shared", key="customer/7")] = State.HELD.name
    answer = await client.send("PUT", "admin/limits/api", json.dumps({"maxRunning": 5}).encode())
    assert 201 == answer.status, answer.body
    rate = {"count": 1, "perSeconds": 3600}
    rule = {"flow": {"maxRunning": 9, "rate": rate, "limit": "api"}}
    answer = await client.send("PUT", "admin/topics/limited", json.dumps(rule).encode())
    assert answer.status in (200, 201), answer.body
    await client.create("limited")
    claimed = await client.claim("limited", leaseSeconds=3000)
    tasks[claimed["id"]] = State.LEASED.name


async def _unite(client: Client, tasks: dict[str, str]) -> None:
    """Make two tasks of one unique key, of which one is next and has been replaced."""
    unique = {"key": "user:42", "on": "keepLast"}
    held = await client.create("united", unique=unique)
    await client.claim("united", leaseSeconds=3000)
    following = await client.create("united", unique=unique)
    assert following == await client.create("united", payload=[2], unique=unique)
    tasks |= {held: State.LEASED.name, following: State.HELD.name}


async def _stride(client: Client, tasks: dict[str, str]) -> None:
    """Make a task that is parked for a signal after a step, with a signal that waits for it."""
    task_id = await client.create("stepped")
    await client.claim("stepped")
    for path, body in (
        ("steps", {"name": "charge", "value": {"charge": 7}, "position": 1}),
        ("signals/stop", {"payload": {"why": "sold out"}, "idempotencyKey": "stop-1"}),
        ("park", {"step": "return", "signal": "return", "position": 2}),
    ):
        answer = await client.post(f"tasks/{task_id}/{path}", body)
        assert 200 == answer.status, answer.body
    tasks[task_id] = State.DELAYED.name


async def _report(client: Client, tasks: dict[str, str]) -> None:
    """Make a task whose worker says how far it is and what it does, and leaves a checkpoint."""
    reported = await client.create("reported")
    await client.claim("reported", leaseSeconds=3000)
    said = {
        "progress": {"done": 3, "total": 10, "note": "pages"},
        "checkpoint": {"page": 3},
        "log": ["page 1", "page 2"],
    }
    answer = await client.post(f"tasks/{reported}/heartbeat", {"extendSeconds": 3000, **said})
    assert 200 == answer.status, answer.body
    tasks[reported] = State.LEASED.name


async def _end(client: Client, tasks: dict[str, str]) -> None:
    """Make tasks that have ended, with and without files and callbacks."""
    hook = {"webhook": "http://127.0.0.1:9/done"}
    for n in range(3):
        done = await client.create("Ended", payload={"größe": n, "float": 1.50}, **hook)
        await client.claim("Ended")
        sent = await client.send(
            "PUT", f"tasks/{done}/artifacts/note-{n}.txt", f"note {n}".encode()
        )
        body = {"status": "COMPLETED", "result": {"n": n}, "artifacts": [sent.json]}
        await client.post(f"tasks/{done}/result", body)
        tasks[done] = State.DONE.name
    failed = await client.create("Ended", idempotencyKey="order/17", priority=9)
    await client.claim("Ended")
    await client.post(f"tasks/{failed}/result", {"status": "FAILED", "error": "it rained"})
    tasks[failed] = State.FAILED.name
    cancelled = await client.create("Ended")
    await client.post(f"tasks/{cancelled}/cancel")
    tasks[cancelled] = State.FAILED.name


async def _follow(client: Client, tasks: dict[str, str]) -> None:
    """Make a result with follow-ups, of which some are relayed to the other shard."""
    done = await client.create("Ended")
    await client.claim("Ended")
    following = [
        {"command": "follows", "payload": {}, "idempotencyKey": f"f{n}"} for n in range(RELAYED)
    ]
    body = {"status": "COMPLETED", "result": {}, "next": following}
    answer = await client.post(f"tasks/{done}/result", body)
    assert 200 == answer.status, answer.body
    tasks[done] = State.DONE.name
    await eventually(
        lambda: client.depth("follows"), lambda depth: depth["ready"] == len(following)
    )
    for each in following:
        tasks[str((await client.post("tasks", each)).json["id"])] = State.READY.name


async def _wait(node: Node, client: Client, tasks: dict[str, str]) -> None:
    """Make tasks that have not ended, a dead letter, pending jobs and something set aside."""
    dead = await client.create("Ended", maxAttempts=1, webhook="http://127.0.0.1:9/dead")
    await client.claim("Ended")
    # Nobody needs this file once the task is dead: it leaves a sweep.
    await client.send("PUT", f"tasks/{dead}/artifacts/left", b"left")
    await client.post(f"tasks/{dead}/nack", {"reason": "broken"})
    tasks[dead] = State.DEAD.name
    for n in range(3):
        task = await client.create("waiting", priority=5, payload={"n": n}, ttlSeconds=3600)
        tasks[task] = State.READY.name
    tasks[await client.create("delayed", delaySeconds=3600)] = State.DELAYED.name
    leased = await client.create("held", timeoutSeconds=600, backoffPolicy="linear")
    await client.claim("held", leaseSeconds=3000, workerName="host-1:7")
    tasks[leased] = State.LEASED.name
    again = await client.create("again", maxAttempts=3)
    await client.claim("again")
    await client.post(f"tasks/{again}/nack", {"delaySeconds": 3600, "reason": "busy"})
    tasks[again] = State.DELAYED.name
    aside = await client.create("aside", ttlSeconds=3600)
    await set_aside(node.parts.calls.router, aside, tenant="acme")
    tasks[aside] = State.READY.name


SPOKEN: tuple[raft.Message, ...] = (
    raft.Append(
        term=3, prev=5, prev_term=2, commit=4, terms=[3, 3], commands=[b"\x00a", b"\x01"],
        floor=1, round=9, applied=4, digest=b"d" * 16, quiet=False,
    ),
    raft.Answer(
        term=3, next=8, success=True, reset=False, of_incarnation=1, of_seq=2, round=9, applied=4,
        digest=b"d" * 16, awaited=True,
    ),
    raft.VoteRequest(term=3, last=5, last_term=2, transfer=True),
    raft.Vote(term=3),
    raft.PreVoteRequest(term=3, last=5, last_term=2),
    raft.PreVote(term=3, asked=4, granted=True),
    raft.TimeoutNow(term=3),
    raft.TermHint(term=3),
    raft.Behind(term=3, first=7),
    raft.Diverged(term=3, index=7, digest=b"d" * 16),
)  # fmt: skip
STAMP = {"incarnation": 2**63, "seq": 7}


def identity(node_id: str) -> LinkIdentity:
    """Return one of the two nodes of the transcript."""
    return LinkIdentity(
        node_id=node_id,
        cluster_id=CLUSTER,
        incarnation=7,
        secret=SECRET.encode(),
        address=f"{node_id}:7000",
    )


def link_transcript() -> dict[str, bytes]:
    """Return the greetings of two nodes, and frames of the one that dialled."""
    dialling = Dialling(identity("n1"), "n2", session=3)
    accepting = Accepting(identity("n2"), {"n1"}, lambda *_: None)
    said = {"hello": dialling.hello()}
    said["challenge"], _ = accepting.receive(said["hello"])
    proof = dialling.receive(said["challenge"])
    assert isinstance(proof, bytes)
    said["proof"] = proof
    said["welcome"], _ = accepting.receive(proof)
    session = dialling.receive(said["welcome"])
    assert isinstance(session, LinkSession)
    writer = FrameWriter(session.send_key)
    bodies = (
        bundle([raft_item(1, raft.render(each, **STAMP)) for each in SPOKEN]),
        bundle([]),
        bundle(
            [
                request_item(9, "operate", 0.5, pack([1, b"x", None])),
                answer_item(9, pack({"a": "b"})),
                failure_item(9, OSError("lost")),  # type: ignore[arg-type]
            ]
        ),
    )
    said["frames"] = b"".join(writer.seal(body) + body for body in bodies)
    return said


def main() -> None:
    """Write this release's files; they are never written again."""
    argparse.ArgumentParser(
        prog="python -m tests.golden.release", description=main.__doc__
    ).parse_args()
    into = place_of(__version__)
    into.mkdir(parents=True)
    asyncio.run(make(into))
    pack_release(into)
    sizes = {file.name: file.stat().st_size for file in into.iterdir()}
    sys.stdout.write(f"{into}: {sizes}\n")


if __name__ == "__main__":
    main()
