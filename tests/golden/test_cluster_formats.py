"""Formats that two releases share, beside entries and records, against the file beside this one.

These are memberships, the rows of a log, a link's greetings, a snapshot's manifest and a
directory's identity file. A difference means that two releases no longer understand each other.

    GOLDEN_REWRITE=1 pytest tests/golden
"""

from __future__ import annotations

import os
from pathlib import Path

import cbor2
import msgspec
import pytest

from codeq_cluster.codec import membership
from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.messages import PAYLOAD
from codeq_cluster.snapshots import manifest
from codeq_cluster.snapshots.manifest import File, SnapshotManifest
from codeq_cluster.storage.directory import open_directory
from codeq_cluster.wire.handshake import Accepting, Dialling, LinkIdentity, LinkSession
from tests.simulator.disk import SimDisk

HERE = Path(__file__).parent
TWO = Membership(
    members=(
        Member(id="n1", data=7, link="10.0.0.1:7000", http="http://10.0.0.1:8080", level=2),
        Member(id="n2", data=2**31 - 1, voter=False, link="n2:7000", http="http://n2", level=1),
    ),
    level=1,
)
RECOVERED = Membership(members=TWO.members, past=(5, 2**31 - 1))
MANIFEST = SnapshotManifest(
    id="a1",
    shard=3,
    index=1042,
    term=5,
    digest=bytes(range(16)),
    files=(File("CURRENT", 16), File("000012.sst", 2**33)),
    members=membership.encode(TWO),
    level=1,
)


def _log_rows() -> dict[str, bytes]:
    """Return the rows of a log of a vote, a first entry, a batch and a membership."""
    journal = Journal(SimDisk(), cache_bytes_max=2**16)
    journal.load(applied=1, bootstrap=TWO)
    journal.setCurrentTerm(5, "n1")
    journal.add(PAYLOAD + b"batch", 2, 5)
    journal.name_members(TWO)
    return {key.hex(): value for key, value in sorted(journal.flush().puts)}


def _lines() -> dict[str, bytes]:
    return {
        "membership": membership.encode(TWO),
        "nobody": membership.encode(Membership()),
        "recovered": membership.encode(RECOVERED),
        "manifest": cbor2.dumps(manifest.encode(MANIFEST)),
        **{f"log row {key}": value for key, value in _log_rows().items()},
    }


def test_bytes_are_what_they_were() -> None:
    """Bytes of an earlier release mean the same to this one."""
    text = "".join(f"{name}\t{value.hex(' ', -4)}\n" for name, value in _lines().items())
    path = HERE / "cluster.txt"
    if os.environ.get("GOLDEN_REWRITE"):
        path.write_text(text)

    assert text == path.read_text()


def test_stored_bytes_read_back() -> None:
    """The golden bytes decode to the original values, and a log continues from its rows."""
    rows = (line.split("\t") for line in (HERE / "cluster.txt").read_text().splitlines())
    golden = {name: bytes.fromhex(value) for name, value in rows}
    disk = SimDisk()
    prefix = "log row "
    disk.write(
        [
            (bytes.fromhex(name.removeprefix(prefix)), value)
            for name, value in golden.items()
            if name.startswith(prefix)
        ],
        sync=True,
    )
    journal = Journal(disk, cache_bytes_max=2**16)
    journal.load(applied=1)

    assert TWO == membership.decode(golden["membership"])
    assert Membership() == membership.decode(golden["nobody"])
    assert RECOVERED == membership.decode(golden["recovered"])
    assert MANIFEST == manifest.decode(cbor2.loads(golden["manifest"]))
    assert (5, "n1", 3) == (journal.term, journal.voted_for, journal.last)
    assert (PAYLOAD + b"batch", 2, 5) == journal.read(2, count=1, bytes_max=100)[0]
    assert (3, TWO) == journal.memberships.newest


@pytest.mark.parametrize("later", [[], ["what a later release adds"]], ids=["now", "later"])
def test_a_release_of_version_1_of_the_link_is_let_in(later: list[object]) -> None:
    """Its greetings are literal bytes, as a program without this code would send them."""
    me = LinkIdentity(node_id="n1", cluster_id="c", incarnation=7, secret=b"s")
    dialling = Dialling(me, "n2", session=3)
    greeting = ["codeq-link", 1, 1, "c", "n1", "n2", b"n" * 32, 7, 3, "10.0.0.1:7000", *later]
    assert [type(each) for each in greeting[:10]] == [
        type(each) for each in cbor2.loads(dialling.hello())
    ]
    dialling._hello = cbor2.dumps(greeting)
    accepting = Accepting(
        LinkIdentity(node_id="n2", cluster_id="c", incarnation=8, secret=b"s"),
        {"n1"},
        lambda *_: None,
    )
    challenge, _ = accepting.receive(dialling.hello())
    proof = dialling.receive(challenge)
    assert isinstance(proof, bytes)
    welcome, accepted = accepting.receive(proof)
    dialled = dialling.receive(welcome)
    assert isinstance(dialled, LinkSession)
    assert accepted is not None

    assert ["challenge", 1] == cbor2.loads(challenge)[::2]
    assert (1, 1) == (dialled.version, accepted.version)
    assert ("n1", "10.0.0.1:7000") == (accepted.peer, accepted.address)
    assert dialled.send_key == accepted.receive_key


def test_a_directory_of_the_first_release_is_opened(tmp_path: Path) -> None:
    """Its file is literal text, as a program without this code would write it."""
    with open_directory(tmp_path / "d", cluster_id="c", node_id="n1", shards=1):
        pass
    file = tmp_path / "d" / "node.json"
    known = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    first: dict[str, object] = {
        "formatVersion": 1,
        "clusterId": "c",
        "nodeId": "n1",
        "shards": 1,
        "data": 9,
        "opened": 4,
        "bootstrap": msgspec.to_builtins(TWO),
        "level": 1,
        "made": True,
        "hasWal": False,
    }
    assert first.keys() == known.keys()
    file.write_bytes(msgspec.json.encode(first))
    with open_directory(tmp_path / "d", cluster_id="c", node_id="n1", shards=1) as again:
        assert (9, 5) == (again.data, again.incarnation & 0xFFFFFFFF)
        assert TWO == again.bootstrap
