"""Background: clients without a loop, when another thread closes them, after a fork, at the end."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading

import pytest

from codeq_cluster.client import Client, ConnectionGone, SyncClient
from codeq_cluster.testing.broker import LocalBroker

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

_FOLLOWS = """
import sys
from codeq_cluster.client import Client, SyncClient

client = SyncClient(Client([sys.argv[1]], token=sys.argv[2]))
feed = client.events(after=sys.argv[3])
print(next(feed).kind, flush=True)
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


def test_a_program_may_end_with_its_events_open(broker: LocalBroker) -> None:
    """Its iterator is dropped after the loop's thread, whose answer would never come."""
    with broker.sync_client() as client:
        after = client.events_cursor()
        client.create("followed", {})
    ended = subprocess.run(
        [sys.executable, "-c", _FOLLOWS, broker.url, broker.token, after],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert ("ready\n", "") == (ended.stdout, ended.stderr)


def test_the_collector_may_drop_events_in_any_thread(broker: LocalBroker) -> None:
    """In the loop's own thread nothing waits for the loop, so that other calls go on."""
    client = broker.sync_client()
    after = client.events_cursor()
    client.create("collected", {})
    feed = client.events(after=after)
    next(feed)
    cycle: list[object] = [feed]
    cycle.append(cycle)
    del feed, cycle

    async def collect() -> None:
        gc.collect()

    def call() -> None:
        client._wait(collect())
        made.append(client.create("collected", {}).command)

    made: list[str] = []
    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    calling.join(_WITHIN_S)

    assert ["collected"] == made
    client.close()
