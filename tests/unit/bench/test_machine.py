"""Machine: CPU time covers all threads, and is finer than the ticks of /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench.machine import busy_seconds, cpu_seconds_exact, cpu_seconds_of_family, scratch

_BURNS_AND_WAITS = """
import time
while time.process_time() < 0.15:
    pass
print(flush=True)
input()
"""


def _burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_missing_parent_of_the_data_is_made(tmp_path: Path) -> None:
    """The directory in it is deleted at the end."""
    parent = tmp_path / "disk" / "bench"
    with scratch(parent) as directory:
        assert parent == directory.parent

    assert [] == list(parent.iterdir())


def test_cpu_time_counts_every_thread_and_those_that_have_ended() -> None:
    """A process's figure includes the work of its threads."""
    before = cpu_seconds_exact(os.getpid())
    thread = threading.Thread(target=_burn, args=(0.05,))
    thread.start()
    thread.join()

    assert cpu_seconds_exact(os.getpid()) - before >= 0.05
    assert cpu_seconds_exact(os.getpid()) == pytest.approx(time.process_time(), abs=0.01)


def test_the_cpu_time_of_a_family_counts_children_before_and_after_their_end() -> None:
    """A server with a process for each connection has used what those have that are closed."""

    def of_children() -> float:
        return cpu_seconds_of_family(os.getpid()) - cpu_seconds_exact(os.getpid())

    before = of_children()
    with subprocess.Popen(
        [sys.executable, "-c", _BURNS_AND_WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = of_children() - before
        child.communicate(b"\n")

    assert living >= 0.1
    assert of_children() - before >= 0.08  # Ticks of 10 ms, of user and system time.


def test_cpu_time_is_finer_than_a_tick() -> None:
    """A millisecond shows, where /proc/PID/stat counts tens of them."""
    before = cpu_seconds_exact(os.getpid())
    _burn(0.001)

    assert 0.001 <= cpu_seconds_exact(os.getpid()) - before


def test_a_process_that_is_gone_has_no_cpu_time() -> None:
    """A node that died during the measurement is an error, not a zero."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

    with pytest.raises(ProcessLookupError, match=str(child)):
        cpu_seconds_exact(child)


def test_the_machine_is_at_least_as_busy_as_this_process() -> None:
    """The time of all processes contains that of one, to a tick or two."""
    before = busy_seconds()
    _burn(0.1)

    assert busy_seconds() - before >= 0.06
