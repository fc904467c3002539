"""Background: clients without a loop, when another thread closes them and after a fork."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from codeq_cluster.client import Client, ConnectionGone, SyncClient

_WITHIN_S = 20

_FORKS = """
import os, signal
from codeq_cluster.client import Client, ConnectionGone, SyncClient, Unreachable

client = SyncClient(Client(["http://127.0.0.1:1"], token="t", deadline_s=0))
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    try:
        client.raft_status()
    except Unreachable:
        print("the parent goes on", flush=True)
    client.close()
else:
    signal.alarm(10)  # A call that hangs ends the child with a signal.
    try:
        client.raft_status()
    except ConnectionGone as error:
        print(error, flush=True)
        client.close()
        os._exit(0)
"""


def test_a_close_ends_the_calls_of_other_threads() -> None:
    """They raise an error that says so, as every later call does."""
    raised: list[Exception] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        client = SyncClient(Client([url], token="t", discover=False))

        def call() -> None:
            try:
                client.raft_status()
            except ConnectionGone as error:
                raised.append(error)

        calling = threading.Thread(target=call, daemon=True)
        calling.start()
        with server.accept()[0] as silent:
            assert silent.recv(1)
            client.close()
            calling.join(_WITHIN_S)

    assert ["this connection is closed: open a new one"] == [str(each) for each in raised]
    with pytest.raises(ConnectionGone, match="is closed"):
        client.raft_status()
    client.close()


def test_a_forked_process_is_told_to_make_a_client_of_its_own() -> None:
    """It does not wait for a thread that only the parent has, whose client goes on."""
    forked = subprocess.run(
        [sys.executable, "-c", _FORKS], capture_output=True, text=True, check=True, timeout=60
    )

    assert [
        "this connection was made before a fork: open one in this process",
        "0",
        "the parent goes on",
    ] == forked.stdout.splitlines()
