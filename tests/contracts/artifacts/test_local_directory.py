"""The directory's promises beyond the contract: crashes, and places it cannot use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from codeq_cluster.artifacts import open_store
from codeq_cluster.artifacts.names import artifact_path, task_prefix
from codeq_cluster.errors import ArtifactStoreFailed
from codeq_cluster.settings import ArtifactProvider, ArtifactSettings
from tests.contracts.artifacts.conftest import Place, chunked

PATH = artifact_path("acme", "t1", "u1", "report.txt")


async def test_the_remains_of_a_crash_are_deleted_with_the_task(local_place: Place) -> None:
    """A half-written file is no artifact, and is deleted with its task's."""
    await local_place.store.put(PATH, chunked(b"x"), content_type="a/b", bytes_max=1)
    root = local_place.settings.directory
    assert root is not None
    (root / "acme/t1/u1/#0123456789abcdef").write_bytes(b"half")

    assert 1 == await local_place.store.delete_prefix(task_prefix("acme", "t1"))
    assert not local_place.left()


async def test_a_link_in_the_directory_is_not_followed_by_a_deletion(
    local_place: Place, tmp_path: Path
) -> None:
    """Deleting a task deletes nothing elsewhere."""
    root = local_place.settings.directory
    assert root is not None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").touch()
    (root / "acme/t1").mkdir(parents=True)
    (root / "acme/t1/u1").symlink_to(tmp_path / "elsewhere")
    await local_place.store.delete_prefix(task_prefix("acme", "t1"))

    assert (tmp_path / "elsewhere" / "precious").exists()


@pytest.mark.parametrize("content", [b"", b"no head\n", b'{"etag": 5}\n', b"x" * 5000])
async def test_a_file_that_is_no_artifact_is_not_served(local_place: Place, content: bytes) -> None:
    """A damaged file is a failure of the store, not an artifact."""
    await local_place.store.put(PATH, chunked(b"x"), content_type="a/b", bytes_max=1)
    root = local_place.settings.directory
    assert root is not None
    (root / PATH).write_bytes(content)

    with pytest.raises(ArtifactStoreFailed, match=r"report\.txt"):
        await local_place.store.head(PATH)


async def test_a_file_in_the_place_of_the_directory_stops_the_node(tmp_path: Path) -> None:
    """One line names the directory and the reason."""
    (tmp_path / "taken").touch()
    settings = ArtifactSettings(provider=ArtifactProvider.LOCAL, directory=tmp_path / "taken")
    for directory in (tmp_path / "taken", tmp_path / "taken" / "below"):
        store = open_store(replace(settings, directory=directory))
        assert store is not None
        with pytest.raises(ArtifactStoreFailed) as caught:
            await store.check()

        assert f"the directory {directory}" in str(caught.value)
        assert "\n" not in str(caught.value)
