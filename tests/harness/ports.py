"""Ports: addresses that a test gives to `codeq-cluster dev`, or at which nobody listens."""

from __future__ import annotations

import random

from codeq_cluster.testing.ports import PORTS, claim_port
from tests.harness.waiting import ClusterError

# `codeq-cluster dev` has its links 10,000 above its HTTP ports; both must be in `PORTS`.
DEV_LINK_OFFSET = 10_000


def free_port_base(nodes: int) -> int:
    """Return a first port for `codeq-cluster dev` with that many nodes, as `free_ports` does."""
    bases = range(PORTS.start, PORTS.stop - DEV_LINK_OFFSET - nodes)
    for base in random.SystemRandom().sample(bases, len(bases)):
        http = range(base, base + nodes)
        if all(claim_port(port) and claim_port(port + DEV_LINK_OFFSET) for port in http):
            return base
    raise ClusterError(f"no {nodes} free ports in a row in {bases}")


def dead_url(path: str = "") -> str:
    """Return a URL at which nobody listens, on a host of its own.

    A broker leaves a host alone that keeps failing, so tests must not share one.
    """
    draw = random.SystemRandom().randrange
    return f"http://127.{draw(1, 255)}.{draw(256)}.{draw(1, 255)}:9/{path}"
