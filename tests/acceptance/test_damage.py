"""Damage: a node with corrupt files refuses to serve them, and reports it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.commands import Ended, command
from tests.harness.node_process import PRODUCER_TOKEN, NodeProcess
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Incompressible data, and enough of it that RocksDB writes table files.
TASKS = 12
# Of a log with rows of a task.
LEAST_BYTES = 1000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes of one shard and stop n2; a copy of its data is kept as `whole` beside it."""
    settings = {"store": {"memtableBytes": 2**20}}
    cluster = LocalCluster(tmp_path_factory.mktemp("damage"), shards=1, settings=settings)
    async with cluster:
        await fill(cluster)
        # A node that starts with entries in its write-ahead log writes table files.
        assert 0 == await cluster.stop("n2")
        cluster.start("n2")
        await cluster.wait_ready()
        await fill(cluster)
        data = cluster.nodes["n2"].data_path
        await fill_own_log(cluster, data)
        await cluster.kill("n2")
        shutil.copytree(data, data.parent / "whole")
        yield cluster


@pytest.fixture
def node(filled: LocalCluster) -> NodeProcess:
    """Return n2, stopped, with its original data."""
    node = filled.nodes["n2"]
    shutil.rmtree(node.data_path)
    shutil.copytree(node.directory / "whole", node.data_path)
    node.log_path.write_text("")
    return node


async def fill(cluster: LocalCluster) -> None:
    """Create tasks of a hundred kilobytes each."""
    async with RecordingClient(cluster.urls) as client:
        for n in range(TASKS):
            payload = {"n": n, "text": f"{n:x}" * 100_000}
            await client.created("n1", PRODUCER_TOKEN, "filled", payload=payload)
    await cluster.wait_converged()


def own_log(data: Path) -> Path:
    """Return the log that RocksDB itself writes."""
    return max((data / "shard-0").glob("*.log"))


async def fill_own_log(cluster: LocalCluster, data: Path) -> None:
    """Create small tasks until RocksDB's own log, which may have just begun, has some."""
    async with RecordingClient(cluster.urls) as client:

        async def has_some() -> bool:
            await client.created("n1", PRODUCER_TOKEN, "filled")
            return own_log(data).stat().st_size > LEAST_BYTES

        await until(has_some, what="tasks in RocksDB's own log")
    await cluster.wait_converged()


def flip(file: Path, place: float) -> None:
    """Change a byte at a fraction of the file's length."""
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 0x5A
    file.write_bytes(content)


def change_log(data: Path, change: Callable[[bytearray, int], None]) -> None:
    """Change the write-ahead log's segment; `change` gets its bytes and the number used."""
    [segment] = (data / "wal").glob("segment-*")
    content = bytearray(segment.read_bytes())
    change(content, len(content.rstrip(b"\x00")))
    segment.write_bytes(content)


def flip_log(data: Path) -> None:
    """Change a byte in the middle of the write-ahead log."""

    def flip_middle(content: bytearray, used: int) -> None:
        content[used // 2] ^= 0x5A

    change_log(data, flip_middle)


def tear_log(data: Path) -> None:
    """Cut off the last bytes of the write-ahead log."""

    def tear(content: bytearray, used: int) -> None:
        content[used - 3 : used] = bytes(3)

    change_log(data, tear)


def lose_pages(data: Path) -> None:
    """Fill the second half of RocksDB's own log with zeros."""
    own = own_log(data)
    content = own.read_bytes()
    own.write_bytes(content[: len(content) // 2].ljust(len(content), b"\x00"))


def flip_manifest(data: Path) -> None:
    """Change RocksDB's manifest."""
    flip(next((data / "shard-0").glob("MANIFEST-*")), 0.3)


def flip_table(data: Path) -> None:
    """Change the middle of every table, since one of them holds the log."""
    tables = list((data / "shard-0").glob("*.sst"))
    assert tables
    for table in tables:
        flip(table, 0.4)


def flip_identity(data: Path) -> None:
    """Change the first byte of the file with the node's identity."""
    flip(data / "node.json", 0.0)


def lose_the_state(data: Path) -> None:
    """Delete all data of a shard: an empty replica would have forgotten its promises."""
    for file in (data / "shard-0").iterdir():
        file.unlink()


def lose_what_is_current(data: Path) -> None:
    """Delete the file that names the current manifest."""
    (data / "shard-0" / "CURRENT").unlink()


async def repair(data: Path, *flags: str) -> Ended:
    """Run `repair`."""
    return await command("repair", "--data-dir", data, *flags)


def names(directory: Path) -> set[str]:
    """Return the names in a directory."""
    return {file.name for file in directory.iterdir()}


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (flip_log, "write-ahead"),
        (flip_manifest, "shard 0"),
        (flip_table, "shard 0"),
        (lose_the_state, "shard 0"),
        (lose_what_is_current, "shard 0"),
        (flip_identity, "node.json"),
    ],
)
async def test_a_damaged_node_refuses_to_serve_and_is_set_aside(
    filled: LocalCluster, node: NodeProcess, damage: Callable[[Path], None], named: str
) -> None:
    """One line names the damage and the command that moves the data away without deleting it."""
    damage(node.data_path)
    before = names(node.data_path)
    filled.start("n2")

    async def refused() -> bool:
        return not node.running or "replica is out" in node.log_path.read_text()

    await until(refused, what="n2 refusing to serve")
    held = await repair(node.data_path) if node.running else None
    ended = await filled.stop("n2") if node.running else node.process and node.process.wait()
    said = node.log_path.read_text()
    looked = await repair(node.data_path)
    kept = names(node.data_path)
    # The only shard cannot be read, so its data may be the last copy.
    refused = await repair(node.data_path, "--yes")
    done = await repair(node.data_path, "--yes", "--json", "--force")
    aside = Path(done.document["setAside"])

    assert ended == (1 if held is None else 0)
    assert held is None or "in use by another process" in held.err
    assert named in said or "shard-0" in said or '"shard": 0' in said
    assert f"codeq-cluster repair --data-dir {node.data_path}" in said
    assert (1, 1, 0) == (looked.code, refused.code, done.code), done.err
    assert "it cannot be read whether this node has peers" in refused.err
    assert named.replace(" ", "-") in looked.out
    assert before <= kept
    assert {"LOCK", aside.name} == names(node.data_path)
    assert kept - {"LOCK"} == names(aside)
    assert 1 == (await repair(node.data_path, "--yes")).code


async def test_repair_leaves_healthy_data_in_place(node: NodeProcess) -> None:
    """Only a healthy node's own data records the promises it has made, so it must stay."""
    before = names(node.data_path)

    looked = await repair(node.data_path)
    refused = await repair(node.data_path, "--yes")

    assert (0, 1) == (looked.code, refused.code)
    assert "nothing is wrong" in looked.err
    assert "--force" in refused.err
    assert before == names(node.data_path)


async def test_what_a_power_cut_leaves_is_no_damage_and_the_node_starts(
    filled: LocalCluster, node: NodeProcess
) -> None:
    """It tears the last record of the log, which the peers send again.

    It takes pages that RocksDB has not synced, too; the log has their rows.
    """
    tear_log(node.data_path)
    lose_pages(node.data_path)
    assert 0 == (await repair(node.data_path)).code
    filled.start("n2")
    await filled.wait_ready()
    await filled.wait_converged()

    async with RecordingClient(filled.urls) as client:
        made = await client.created("n2", PRODUCER_TOKEN, "filled")
    await filled.kill("n2")
    assert "filled" == made["command"]
