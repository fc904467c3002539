"""Processes: wait until servers are ready to be measured, count their CPU time, and stop them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench.machine import cpu_seconds_exact
from tests.harness.cluster import LocalCluster
from tests.harness.servers import Server

READY_WITHIN_S = 60.0
_STOP_WITHIN_S = 30.0
_POLL_S = 0.02


def cpu_s(cluster: LocalCluster) -> float:
    """Return the CPU time that all nodes have used, in seconds."""
    return sum(cpu_seconds_exact(node.pid) for node in cluster.nodes.values())


def wait_until(
    holds: Callable[[], bool],
    servers: Sequence[Server],
    *,
    logs: Callable[[], Iterable[Path]] = tuple,
    within_s: float = READY_WITHIN_S,
) -> None:
    """Return when a condition holds.

    Args:
        holds: The condition; it is checked every 20 ms.
        servers: Processes that must keep running meanwhile.
        logs: Log files of the servers, for the error's text.
        within_s: Longest wait.

    Raises:
        RuntimeError: The condition did not hold in time, or a server ended; with the logs' ends.
    """
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline or not all(server.running for server in servers):
            every = [*servers, *map(Server, logs())]
            ends = [f"{each.log_path}:\n{each.log_tail()}" for each in every]
            raise RuntimeError("the cluster did not start\n" + "\n".join(ends))
        time.sleep(_POLL_S)


def stop(servers: Iterable[Server]) -> None:
    """Send SIGTERM to all servers at once, and SIGKILL to those that do not end in time."""
    every = list(servers)
    for server in every:
        server.terminate()
    for server in every:
        server.stop(within_s=_STOP_WITHIN_S)


def listens(port: int) -> bool:
    """Return whether a server accepts connections on a loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
