"""Swaps of directories: a power cut leaves one of the two, complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from codeq_cluster.storage.swap import exchange, incoming_path, settle

OLD = {"CURRENT": b"old", "000004.sst": b"a", "000005.log": b""}
NEW = {"CURRENT": b"new", "000009.sst": b"bb"}

# All calls with which a swap touches the file system.
CALLS = ("open", "fsync", "rename", "unlink", "rmdir")


class PowerCutError(BaseException):
    """The machine is gone: nothing happens after this, not even the handling of errors."""


class Machine:
    """Counts the calls that reach the file system, and ends before one of them.

    Attributes:
        done: Name and path of each call made.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, str]] = []
        self._left: int | None = None
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    @contextmanager
    def power_for(self, calls: int | None) -> Iterator[None]:
        """Run with power for this many calls, or for ever; swallow the cut."""
        self._left = calls
        self.done.clear()
        try:
            yield
        except PowerCutError:
            return
        finally:
            self._left = None

    def _counted(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(target: object, *args: object, **options: object) -> object:
            if self._left == 0:
                raise PowerCutError(name)
            if self._left is not None:
                self._left -= 1
            if isinstance(target, int):
                target_path = str(Path(f"/proc/self/fd/{target}").readlink())
            else:
                target_path = str(target)
            made = call(target, *args, **options)
            self.done.append((name, target_path))
            return made

        return counted


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine whose power can be cut."""
    return Machine(monkeypatch)


def fill(path: Path, files: dict[str, bytes]) -> None:
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)


def prepared(root: Path) -> Path:
    """Return a directory in use with a replacement beside it."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    path = root / "shard-0"
    fill(path, OLD)
    fill(incoming_path(path), NEW)
    return path


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_the_prepared_directory_takes_the_place(tmp_path: Path) -> None:
    """Afterwards no other directory is left."""
    path = prepared(tmp_path / "data")

    exchange(path)

    assert NEW == content(path)
    assert [path] == list(path.parent.iterdir())
    settle(path)
    assert NEW == content(path)


def test_a_power_cut_at_any_call_leaves_one_of_the_two_whole(
    tmp_path: Path, machine: Machine
) -> None:
    """A second cut, at any call of the cleanup after the first, leaves one of the two as well."""
    outcomes = []
    for calls in count():
        path = prepared(tmp_path / "data")
        with machine.power_for(calls):
            exchange(path)
        if len(machine.done) < calls:
            break
        for calls_of_settle in count():
            path = prepared(tmp_path / "data")
            with machine.power_for(calls):
                exchange(path)
            with machine.power_for(calls_of_settle):
                settle(path)
            finished = len(machine.done) < calls_of_settle
            with machine.power_for(None):
                settle(path)
            assert content(path) in (OLD, NEW), (calls, calls_of_settle)
            assert [path] == list(path.parent.iterdir()), (calls, calls_of_settle)
            if finished:
                break
        outcomes.append(content(path) == NEW)

    # Up to one call the old directory remains, and from then on the new one.
    assert sorted(outcomes) == outcomes
    assert {False, True} == set(outcomes)


def test_each_step_is_durable_before_the_next_relies_on_it(
    tmp_path: Path, machine: Machine
) -> None:
    """Files come before the marker, renames after it, and its removal after the renames."""
    path = prepared(tmp_path / "data")
    incoming, parent = incoming_path(path), path.parent
    with machine.power_for(None):
        exchange(path)
    done = machine.done
    marked = done.index(("open", f"{path}.ready"))
    renames = [place for place, (name, _) in enumerate(done) if name == "rename"]
    unmarked = done.index(("unlink", f"{path}.ready"))
    synced = [place for place, each in enumerate(done) if each == ("fsync", str(parent))]

    on_disk = {target for name, target in done[:marked] if name == "fsync"}
    assert {str(incoming), *(str(incoming / name) for name in NEW)} <= on_disk
    assert any(marked < place < renames[0] for place in synced)
    assert any(renames[-1] < place < unmarked for place in synced)
    assert any(unmarked < place for place in synced)


def test_what_was_not_complete_is_dropped(tmp_path: Path) -> None:
    """A half-received snapshot counts for nothing after a restart."""
    path = prepared(tmp_path / "data")

    settle(path)

    assert OLD == content(path)
    assert [path] == list(path.parent.iterdir())


def test_what_was_marked_goes_forward(tmp_path: Path) -> None:
    """From the marker on, a restart completes the exchange, with or without the old directory."""
    for gone in (False, True):
        path = prepared(tmp_path / "data")
        path.with_name("shard-0.ready").touch()
        if gone:
            path.rename(path.with_name("shard-0.old"))

        settle(path)

        assert NEW == content(path)
        assert [path] == list(path.parent.iterdir())


def test_a_replacement_that_has_vanished_costs_nothing(tmp_path: Path) -> None:
    """The former directory is deleted only when there is another one."""
    path = prepared(tmp_path / "data")
    path.with_name("shard-0.ready").touch()
    path.rename(path.with_name("shard-0.old"))
    shutil.rmtree(incoming_path(path))

    settle(path)

    assert OLD == content(path)
    assert [path] == list(path.parent.iterdir())


def test_a_first_start_has_nothing_to_settle(tmp_path: Path) -> None:
    """The directory may not even exist yet."""
    settle(tmp_path / "shard-0")

    assert [] == list(tmp_path.iterdir())


def test_a_refusing_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is exchanged when the replacement cannot be made durable."""
    path = prepared(tmp_path / "data")

    def refuse(_file: int) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="no space"):
        exchange(path)

    assert OLD == content(path)
