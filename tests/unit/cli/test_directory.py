"""Directory: the files of a development cluster, and refusals of other directories."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from codeq_cluster.cli.local.dev.directory import locked, prepare, publish, retract
from codeq_cluster.cli.local.dev.plan import plan
from codeq_cluster.cli.support.dev_cluster import published
from codeq_cluster.errors import CodeqError, DataDirectoryRefused


def test_a_new_directory_gets_four_shards_and_keeps_them(tmp_path: Path) -> None:
    """The first start fixes the number of shards; later ones need not name it."""
    directory = tmp_path / "a" / "b"
    nodes = plan(directory, nodes=3, port_base=9000)

    with locked(directory):
        first = prepare(directory, nodes, shards=None)
        again = prepare(directory, nodes, shards=None)

    assert first == again == 4


@pytest.mark.parametrize(("nodes", "shards", "named"), [(1, 6, "--nodes 3"), (3, 4, "--shards 6")])
def test_other_numbers_than_those_of_the_data_are_refused(
    tmp_path: Path, nodes: int, shards: int, named: str
) -> None:
    """The error has the numbers that the data was created for."""
    with locked(tmp_path):
        prepare(tmp_path, plan(tmp_path, nodes=3, port_base=9000), shards=6)

        with pytest.raises(DataDirectoryRefused, match=named):
            prepare(tmp_path, plan(tmp_path, nodes=nodes, port_base=9000), shards=shards)


def test_the_secret_of_the_cluster_is_made_once_and_private(tmp_path: Path) -> None:
    """Nodes of two starts accept each other, and no other user can read the secret."""
    nodes = plan(tmp_path, nodes=1, port_base=9000)
    with locked(tmp_path):
        prepare(tmp_path, nodes, shards=None)
        secret = (tmp_path / "cluster-secret").read_text()
        prepare(tmp_path, nodes, shards=None)

    assert secret == (tmp_path / "cluster-secret").read_text()
    for file in (tmp_path / "cluster-secret", nodes[0].config_file):
        assert 0o600 == stat.S_IMODE(file.stat().st_mode)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    """The lock is held until the end and then released, whatever remains on disk."""
    with locked(tmp_path):
        with pytest.raises(DataDirectoryRefused, match="in use"), locked(tmp_path):
            pytest.fail("locked twice")
        prepare(tmp_path, plan(tmp_path, nodes=1, port_base=9000), shards=None)

    with locked(tmp_path):
        assert (tmp_path / "dev.json").exists()


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A directory with unrelated files is not used."""
    (tmp_path / "thesis.txt").write_text("done")

    with pytest.raises(DataDirectoryRefused, match="no development cluster"), locked(tmp_path):
        pytest.fail("took a foreign directory")

    assert ["thesis.txt"] == [entry.name for entry in tmp_path.iterdir()]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "nodes": "x", "shards": 1}'])
def test_a_damaged_identity_is_refused(tmp_path: Path, text: str) -> None:
    """A file that cannot be read is not overwritten."""
    (tmp_path / "dev.json").write_text(text)

    with locked(tmp_path), pytest.raises(DataDirectoryRefused, match="damaged"):
        prepare(tmp_path, plan(tmp_path, nodes=1, port_base=9000), shards=None)

    assert text == (tmp_path / "dev.json").read_text()


def test_a_running_cluster_is_published_and_retracted(tmp_path: Path) -> None:
    """cluster.json has each node's process, URL and data, and is removed with the cluster."""
    one, two = plan(tmp_path, nodes=2, port_base=9000)

    publish(tmp_path, [(one, 41), (two, None)])

    nodes = json.loads((tmp_path / "cluster.json").read_text())["nodes"]
    assert [
        {"id": "n1", "pid": 41, "url": one.url, "dataDir": str(one.data_directory)},
        {"id": "n2", "pid": None, "url": two.url, "dataDir": str(two.data_directory)},
    ] == nodes
    assert nodes == list(published(tmp_path))
    retract(tmp_path)
    retract(tmp_path)
    assert () == published(tmp_path)


def test_a_damaged_cluster_file_is_an_error(tmp_path: Path) -> None:
    """A damaged file does not mean that no cluster runs."""
    (tmp_path / "cluster.json").write_text("{")

    with pytest.raises(CodeqError, match="cannot be read"):
        published(tmp_path)
