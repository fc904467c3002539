"""Few files: strangers' connections leave a process that may open few files those of its stores."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.harness.cluster import LocalCluster
from tests.harness.http import HttpClient
from tests.harness.node_process import PRODUCER_TOKEN, NodeProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILES = 256
# Each loopback address stands for another machine; each opens more than the process has left.
STRANGERS = [f"127.0.0.{number}" for number in range(2, 7)]
EACH = FILES
# Together more than a segment of the log and many memtables, so that files are opened.
PAYLOADS = 40
PAYLOAD_BYTES = 500_000


class FewFiles(LocalCluster):
    """A node that may open few files, and may not allow itself more."""

    def _command(self, node: NodeProcess) -> list[str]:
        return ["sh", "-c", f'ulimit -n {FILES} && exec "$@"', "sh", *super()._command(node)]


@contextmanager
def strangers(port: int) -> Iterator[None]:
    """Open all the connections that the strangers can, and say nothing on them."""
    opened = []
    try:
        for address in STRANGERS * EACH:
            connection = socket.socket()
            opened.append(connection)
            connection.setblocking(False)
            connection.bind((address, 0))
            connection.connect_ex(("127.0.0.1", port))
        yield
    finally:
        for connection in opened:
            connection.close()


async def test_strangers_take_no_file_of_a_store(tmp_path: Path) -> None:
    """A replica whose store can open no file would be out, and given up after ten tries."""
    body = msgspec.json.encode({"command": "filled", "payload": "x" * PAYLOAD_BYTES})
    settings = {"store": {"memtableBytes": 2**20}}
    async with FewFiles(tmp_path, nodes=1, shards=1, settings=settings) as cluster:
        node = cluster.nodes["n1"]
        async with HttpClient() as http:
            # Its connection is there before the strangers'.
            assert 200 == (await http.send("GET", node.url, "/readyz")).status
            with strangers(node.http_port):
                answers = [
                    await http.send(
                        "POST", node.url, "/v1/codeq/tasks", token=PRODUCER_TOKEN, body=body
                    )
                    for _ in range(PAYLOADS)
                ]
                ready = await http.send("GET", node.url, "/readyz")
        log = node.log_path.read_text()

    assert [202] * PAYLOADS == [answer.status for answer in answers]
    assert 200 == ready.status
    assert "replica is out" not in log
    assert '"connections": 128' in log
