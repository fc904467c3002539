"""Ports: free TCP ports of this machine, each given to one process at a time."""

from __future__ import annotations

import atexit
import random
import socket
from collections import deque

# Below the kernel's ephemeral ports: otherwise an outgoing connection may take the port of a killed
# node before the node comes back.
PORTS = range(20_000, 32_000)
PORTS_CLAIMED_MAX = 200
_claims: deque[socket.socket] = deque()


def free_ports(count: int) -> list[int]:
    """Return `count` distinct TCP ports at 127.0.0.1 that are free and reserved for this process.

    A port stays reserved until this process has asked for `PORTS_CLAIMED_MAX` others. So another
    test process cannot get a port that this one has not bound yet.

    Raises:
        OSError: There are not that many.
    """
    found: list[int] = []
    # Not the shared generator: processes with the same seed would try the same ports in order.
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if not claim_port(port):
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports in {PORTS}")


def claim_port(port: int) -> bool:
    """Return whether a TCP port at 127.0.0.1 is free, and reserve it if so.

    The reservation is a bound UDP port of the same number, which nothing here uses otherwise.
    """
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with socket.socket() as probe:
        # The same option as a node's: a connection in TIME_WAIT must not make the port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            claim.bind(("127.0.0.1", port))
            probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            return False
    if len(_claims) == PORTS_CLAIMED_MAX:
        _claims.popleft().close()
    _claims.append(claim)
    return True


@atexit.register
def _let_ports_go() -> None:
    for claim in _claims:
        claim.close()
