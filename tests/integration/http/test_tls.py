"""HTTPS: connections that are served or refused, and certificates replaced at run time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvloop

from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.node.compose import Node
from codeq_cluster.settings import LimitSettings, TlsSettings
from tests.harness.certificates import Authority
from tests.integration.http.client import (
    DEADLINE_S,
    Client,
    eventually,
    read_answer,
    running_node,
    single,
)

AUTHORITY = Authority()
STRANGE = Authority("strange")
ASK = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"


@dataclass(frozen=True)
class Served:
    """A node that serves https, and the files of its certificate."""

    node: Client
    certificate: Path
    key: Path


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


@contextlib.asynccontextmanager
async def serving(directory: Path, **limits: int) -> AsyncIterator[Served]:
    """Run a node with a certificate for 127.0.0.1."""
    certificate, key = directory / "node.pem", directory / "node.key"
    AUTHORITY.issue("127.0.0.1").write(certificate, key)
    settings = replace(
        single(directory / "data", LimitSettings(**limits)),
        tls=TlsSettings(cert_file=certificate, key_file=key),
    )
    async with running_node(settings, trust=trusting(AUTHORITY)) as (_, client):
        try:
            yield Served(client, certificate, key)
        finally:
            for writer in client.open:
                writer.transport.abort()


async def shown(node: Client) -> int:
    """Return the serial number of the certificate that a new connection gets."""
    _, writer = await node.connect()
    serial = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return int(serial, 16)


async def test_a_task_goes_its_way_over_https(tmp_path: Path) -> None:
    """Create, claim and result work, and a metric has the certificate's end."""
    async with serving(tmp_path) as served:
        task_id = await served.node.create("c", payload={"text": "x" * 200_000})
        claimed = await served.node.claim("c")
        done = await served.node.post(
            f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}}
        )
        left = await served.node.metric('codeq_tls_certificate_expiry_seconds{use="http"}')

        assert task_id == claimed["id"]
        assert len(str(claimed["payload"])) > 200_000
        assert 200 == done.status
        assert 29 * 86400 < left <= 30 * 86400


def test_https_works_on_the_loop_of_production(tmp_path: Path) -> None:
    """Pipelined requests work, one with the handshake's last bytes, and the stop is clean."""

    async def story() -> None:
        async with serving(tmp_path) as served:
            reader, writer = await served.node.connect()
            writer.write(ASK * 3)
            answers = [await asyncio.wait_for(read_answer(reader), DEADLINE_S) for _ in range(3)]
            task_id = await served.node.create("c")

            assert [200, 200, 200] == [answer.status for answer in answers]
            assert task_id == (await served.node.claim("c"))["id"]

    uvloop.run(story())


async def test_a_request_may_come_with_the_last_bytes_of_the_handshake(tmp_path: Path) -> None:
    """Early bytes are not lost."""
    async with serving(tmp_path) as served:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = served.node.trust.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")  # type: ignore[union-attr]
        reader, writer = await asyncio.open_connection("127.0.0.1", served.node.port)
        served.node.open.append(writer)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    break
                writer.write(outgoing.read())
                incoming.write(await reader.read(2**16))
            tls.write(ASK)
            writer.write(outgoing.read())
            answer = b""
            while b"ok" not in answer:
                incoming.write(await reader.read(2**16))
                with contextlib.suppress(ssl.SSLWantReadError):
                    answer += tls.read(2**16)

        assert answer.startswith(b"HTTP/1.1 200")


async def test_plain_http_is_refused(tmp_path: Path) -> None:
    """A client without TLS is disconnected without an answer, and counted."""
    async with serving(tmp_path) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.node.port)
        served.node.open.append(writer)
        writer.write(ASK)
        said = b""
        with contextlib.suppress(ConnectionError):
            said = await asyncio.wait_for(reader.read(), DEADLINE_S)

        assert b"HTTP" not in said
        assert 1 == await served.node.metric("codeq_http_failed_handshakes_total")
        assert 200 == (await served.node.get("/healthz")).status


async def test_a_client_that_does_not_know_the_authority_refuses(tmp_path: Path) -> None:
    """The node refuses versions of TLS before 1.2."""
    async with serving(tmp_path) as served:
        stranger = Client(served.node.port, trust=trusting(STRANGE))
        with pytest.raises(ssl.SSLCertVerificationError):
            await stranger.get("/healthz")
        old = trusting(AUTHORITY)
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSVersion"):
            old.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSVersion"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await Client(served.node.port, trust=old).get("/healthz")
        newer = trusting(AUTHORITY)
        newer.maximum_version = ssl.TLSVersion.TLSv1_2

        assert 200 == (await Client(served.node.port, trust=newer).get("/healthz")).status


async def test_a_changed_certificate_is_shown_to_new_connections_alone(tmp_path: Path) -> None:
    """A kept-alive connection survives the change."""
    async with serving(tmp_path) as served:
        reader, writer = await served.node.connect()
        writer.write(ASK)
        first = await asyncio.wait_for(read_answer(reader), DEADLINE_S)
        before = await shown(served.node)
        renewed = AUTHORITY.issue("127.0.0.1", days=60)
        renewed.write(served.certificate, served.key)

        async def is_shown() -> bool:
            return await shown(served.node) != before

        await eventually(is_shown)
        writer.write(ASK)
        second = await asyncio.wait_for(read_answer(reader), DEADLINE_S)

        assert renewed.serial == await shown(served.node)
        assert 200 == first.status == second.status
        assert 59 * 86400 < await served.node.metric(
            'codeq_tls_certificate_expiry_seconds{use="http"}'
        )


@pytest.mark.parametrize("broken", ["garbage", "foreign key", "gone"])
async def test_a_broken_certificate_leaves_the_one_before_in_use(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged as an error and shown as a metric until it is mended."""
    stale = 'codeq_tls_certificate_stale{use="http"}'
    async with serving(tmp_path) as served:
        before = await shown(served.node)
        assert 0 == await served.node.metric(stale)
        match broken:
            case "garbage":
                garbage = tmp_path / "garbage"
                garbage.write_text("no certificate")
                garbage.rename(served.certificate)
            case "foreign key":
                other = tmp_path / "other"
                other.write_bytes(AUTHORITY.issue("127.0.0.1").key)
                other.rename(served.key)
            case _:
                served.key.unlink()

        async def is_stale() -> bool:
            return await served.node.metric(stale) == 1

        await eventually(is_stale)
        assert before == await shown(served.node)
        errors = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert ["http"] == [getattr(r, "use", "") for r in errors]
        renewed = AUTHORITY.issue("127.0.0.1")
        renewed.write(served.certificate, served.key)

        async def is_shown() -> bool:
            return await shown(served.node) == renewed.serial

        await eventually(is_shown)
        assert 0 == await served.node.metric(stale)


async def test_a_client_that_stalls_in_the_handshake_loses_its_connection(tmp_path: Path) -> None:
    """The part of the handshake that came does not matter."""
    # Longer than the good clients' handshakes take on a busy machine.
    async with serving(tmp_path, header_timeout_ms=3000) as served:
        stalled = []
        for said in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.node.port)
            served.node.open.append(writer)
            writer.write(said)
            stalled.append(reader)
        for reader in stalled:
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), DEADLINE_S)

        assert 2 == await served.node.metric("codeq_http_failed_handshakes_total")


async def test_connections_in_the_handshake_count(tmp_path: Path) -> None:
    """They use an address's half of the places; others are closed, until places are free again."""
    # Longer than it takes to use up all places, and to be served, on a busy machine.
    async with serving(tmp_path, connections_max=6, header_timeout_ms=3000) as served:

        def dial() -> socket.socket:
            return socket.create_connection(("127.0.0.1", served.node.port))

        async def is_served() -> bool:
            with contextlib.suppress(OSError):
                await served.node.get("/healthz")
                return True
            return False

        async def is_closed() -> bool:
            return not await is_served()

        async def have_failed() -> bool:
            with contextlib.suppress(OSError):
                name = "codeq_http_failed_handshakes_total"
                return await served.node.metric(name) >= 1
            return False

        await eventually(is_served)
        silent = [dial() for _ in range(3)]
        await eventually(is_closed)
        await eventually(have_failed)

        assert 200 == (await served.node.get("/readyz")).status
        for one in silent:
            one.close()


async def test_a_stop_does_not_wait_for_a_goodbye(tmp_path: Path) -> None:
    """Clients that keep their connection, or are in the handshake, do not delay the node."""
    async with serving(tmp_path) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.node.port)
        served.node.open.append(writer)
        kept, keeper = await served.node.connect()
        keeper.write(ASK)
        await asyncio.wait_for(read_answer(kept), DEADLINE_S)
        # The clients keep their connections open, so the stop must close them.
        served.node.open.clear()
    for source, sink in ((reader, writer), (kept, keeper)):
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(source.read(), DEADLINE_S)
        sink.transport.abort()

    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_a_certificate_that_cannot_be_loaded_stops_the_start(tmp_path: Path) -> None:
    """The node stops before it opens its data, with a line that names the files."""
    certificate, key = tmp_path / "node.pem", tmp_path / "node.key"
    AUTHORITY.issue("127.0.0.1").write(certificate, key)
    key.write_bytes(AUTHORITY.issue("127.0.0.1").key)
    settings = replace(
        single(tmp_path / "data", LimitSettings()),
        tls=TlsSettings(cert_file=certificate, key_file=key),
    )

    with pytest.raises(ConfigInvalid, match=r"node\.pem"):
        await Node(settings).start()
    assert not (tmp_path / "data").exists()
