"""Meshes whose nodes prove themselves by certificates, in addition to the secret."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvloop

from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import LinkTlsSettings
from codeq_cluster.wire.certificates import Certificates, LinkContexts, link_certificates
from codeq_cluster.wire.frames import plain_frame
from codeq_cluster.wire.handshake import Dialling, LinkIdentity
from codeq_cluster.wire.messages import pack
from tests.harness.certificates import Authority

from .conftest import (
    DEADLINE_S,
    SECRET,
    SETTINGS,
    Node,
    Nodes,
    Wire,
    echo,
    eventually,
    joined,
    talk_until_one_leaves,
)

CLUSTER = Authority("cluster")
STRANGE = Authority("strange")


@dataclass(frozen=True)
class Files:
    """The paths of one node's files."""

    certificate: Path
    key: Path
    ca: Path

    def settings(self) -> LinkTlsSettings:
        """Return the paths as a node's settings."""
        return LinkTlsSettings(cert_file=self.certificate, key_file=self.key, ca_file=self.ca)


Issue = Callable[..., Files]


@pytest.fixture
def issue(tmp_path: Path) -> Issue:
    """Write a node's files: a certificate for its names, and the authorities it trusts."""

    def issue(*names: str, by: Authority = CLUSTER, ca: Authority = CLUSTER) -> Files:
        directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        files = Files(directory / "node.pem", directory / "node.key", directory / "ca.pem")
        by.issue(*names).write(files.certificate, files.key)
        files.ca.write_bytes(ca.pem)
        return files

    return issue


def loaded(files: Files, node_id: str) -> Certificates[LinkContexts]:
    certificates = link_certificates(files.settings(), node_id=node_id)
    assert certificates is not None
    return certificates


def secured(issue: Issue, *nodes: Node) -> None:
    for node in nodes:
        node.certificates = loaded(issue(node.id), node.id)


def refused(node: Node, reason: str) -> int:
    return node.running.counters.refused_handshakes[reason]


async def test_nodes_of_one_authority_talk(nodes: Nodes, issue: Issue) -> None:
    """Messages in order and calls both ways, small ones and the largest."""
    one, two = nodes.make("n1", "n2")
    secured(issue, one, two)
    one.serve = two.serve = echo
    await one.start()
    await two.start()
    await joined(one, two)
    large = bytes(SETTINGS.frame_bytes_max - 200)
    for number in range(100):
        assert one.running.send("n2", 0, pack({"number": number}))

    assert large == await one.running.call("n2", "m", large, timeout_s=10)
    assert b"x" == await two.running.call("n1", "m", b"x", timeout_s=10)
    assert two.received == [("n1", 0, {"number": number}) for number in range(100)]
    assert [("up", "n2")] == one.events
    assert not any(one.running.counters.refused_handshakes.values())


async def test_what_is_said_cannot_be_read_on_the_way(nodes: Nodes, issue: Issue) -> None:
    """Frames are encrypted; without certificates they are only authentic."""
    one, two = nodes.make("n1", "n2")
    async with Wire(two.port) as wire:
        one.peers = {"n2": f"127.0.0.1:{wire.port}"}
        for certified in (False, True):
            if certified:
                secured(issue, one, two)
            await one.start()
            await two.start()
            await joined(one, two)
            two.received.clear()
            one.running.send("n2", 0, pack({"word": "a secret word"}))
            await eventually(lambda: two.received)

            assert (b"a secret word" in wire.said[-1]) is not certified
            await two.stop()
            await one.stop()


def test_the_link_is_secured_on_the_loop_of_production(issue: Issue) -> None:
    """Messages, calls, a refusal, a loss and a clean stop on uvloop."""

    async def story() -> None:
        nodes = Nodes()
        one, two = nodes.make("n1", "n2")
        secured(issue, one, two)
        await talk_until_one_leaves(one, two)
        two.certificates = loaded(issue("n2", by=STRANGE, ca=STRANGE), "n2")
        await two.start()
        await eventually(lambda: refused(one, "certificate") and refused(two, "refused-by-peer"))
        await two.stop()
        await one.stop()
        assert 1 == len(asyncio.all_tasks())

    uvloop.run(story())


async def test_a_node_signed_by_another_authority_is_refused(nodes: Nodes, issue: Issue) -> None:
    """The right name and the right secret do not help; both sides count the reason."""
    one, two = nodes.make("n1", "n2")
    one.certificates = loaded(issue("n1"), "n1")
    two.certificates = loaded(issue("n2", by=STRANGE, ca=STRANGE), "n2")
    await one.start()
    await two.start()

    await eventually(lambda: refused(one, "certificate") and refused(two, "certificate"))
    await eventually(lambda: refused(one, "refused-by-peer") and refused(two, "refused-by-peer"))
    assert [] == one.events == two.events
    assert set() == one.callers == two.callers


def presenting(files: Files, believes: Certificates[LinkContexts]) -> Certificates[LinkContexts]:
    """Return contexts that no honest node would make: another node's certificate."""

    def context(base: ssl.SSLContext, protocol: int) -> ssl.SSLContext:
        made = ssl.SSLContext(protocol)
        made.check_hostname = False
        made.verify_mode = base.verify_mode
        made.load_verify_locations(files.ca)
        made.load_cert_chain(files.certificate, files.key)
        return made

    now = believes.current
    believes.current = LinkContexts(
        dialling=context(now.dialling, ssl.PROTOCOL_TLS_CLIENT),
        accepting=context(now.accepting, ssl.PROTOCOL_TLS_SERVER),
    )
    return believes


@pytest.mark.parametrize("name", ["n3", "*", "N1", "n1.example"])
async def test_a_node_with_a_name_that_is_not_its_own_stays_out(
    nodes: Nodes, issue: Issue, name: str
) -> None:
    """A valid certificate and the secret are not enough to pass as another node."""
    one, two = nodes.make("n1", "n2")
    two.certificates = loaded(issue("n2"), "n2")
    one.certificates = presenting(issue(name), loaded(issue("n1"), "n1"))
    await two.start()
    await one.start()

    # The impostor is tried both as the dialling and as the accepting side.
    await eventually(lambda: refused(two, "name") >= 2 and refused(one, "refused-by-peer") >= 1)
    assert [] == two.events
    assert set() == two.callers


async def test_a_dialling_node_with_a_foreign_name_is_refused_for_it(
    nodes: Nodes, issue: Issue
) -> None:
    """The accepting side checks by itself, whatever the other side checks."""
    (two,) = nodes.make("n2")
    two.peers = {"n1": f"127.0.0.1:{two.port}", "n3": f"127.0.0.1:{two.port}"}
    two.settings = replace(SETTINGS, redial_ms=60_000, redial_ms_max=60_000)
    two.certificates = loaded(issue("n2"), "n2")
    foreign = loaded(issue("n3"), "n3").current.dialling
    await two.start()
    before = refused(two, "name")
    identity = LinkIdentity(node_id="n1", cluster_id="c", incarnation=1, secret=SECRET)
    source, sink = await asyncio.open_connection(
        "127.0.0.1", two.port, ssl=foreign, server_hostname=""
    )
    sink.write(plain_frame(Dialling(identity, "n2", session=1).hello()))
    async with asyncio.timeout(DEADLINE_S):
        answer = await source.read()
    sink.transport.abort()

    assert b"refused" in answer
    assert b"name" in answer
    assert refused(two, "name") > before
    assert set() == two.callers


async def test_a_certificate_does_not_replace_the_secret(nodes: Nodes, issue: Issue) -> None:
    """A node needs both."""
    one, two = nodes.make("n1", "n2")
    secured(issue, one, two)
    one.secret = b"a guess"
    await one.start()
    await two.start()

    await eventually(lambda: refused(two, "proof") and refused(one, "refused-by-peer"))
    assert [] == one.events == two.events


async def test_who_shows_no_certificate_stays_out(nodes: Nodes, issue: Issue) -> None:
    """TLS without a client certificate proves nothing."""
    (two,) = nodes.make("n2")
    two.certificates = loaded(issue("n2"), "n2")
    await two.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    source, sink = await asyncio.open_connection(
        "127.0.0.1", two.port, ssl=context, server_hostname=""
    )

    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        await asyncio.wait_for(source.read(), DEADLINE_S)
    assert 1 == refused(two, "certificate")
    sink.transport.abort()


async def test_a_node_with_an_older_tls_is_refused(nodes: Nodes, issue: Issue) -> None:
    """Both ends are this project's code, so no version below 1.3 is needed."""
    (two,) = nodes.make("n2")
    two.certificates = loaded(issue("n2"), "n2")
    await two.start()
    context = loaded(issue("n1"), "n1").current.dialling
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2

    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", two.port, ssl=context, server_hostname="")
    await eventually(lambda: refused(two, "tls") == 1)


async def test_a_plain_node_and_a_secured_one_do_not_join(
    nodes: Nodes, issue: Issue, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither falls back, and the secured one logs the reason."""
    one, two = nodes.make("n1", "n2")
    secured(issue, two)
    with caplog.at_level(logging.WARNING):
        await one.start()
        await two.start()
        await eventually(lambda: refused(two, "tls") >= 2)
        await eventually(lambda: one.running.counters.bad_frames["oversize"] >= 2)

    assert [] == one.events == two.events
    assert set() == one.callers == two.callers
    assert "tls" in {getattr(record, "reason", "") for record in caplog.records}


async def test_a_connection_stalled_in_the_tls_handshake_makes_room(
    nodes: Nodes, issue: Issue
) -> None:
    """Silent connections are bounded in number and in time, as without TLS."""
    one, two = nodes.make("n1", "n2")
    secured(issue, one, two)
    await two.start()
    silent = [
        await asyncio.open_connection("127.0.0.1", two.port)
        for _ in range(SETTINGS.unknown_connections_max + 2)
    ]
    await eventually(lambda: refused(two, "crowded-out") == 2)
    await eventually(lambda: refused(two, "timeout") == SETTINGS.unknown_connections_max)
    await one.start()

    await joined(one, two)
    for _, sink in silent:
        sink.transport.abort()


async def test_a_changed_certificate_is_used_by_the_next_connection(
    nodes: Nodes, issue: Issue
) -> None:
    """Existing connections stay; a new one shows the new certificate."""
    one, two = nodes.make("n1", "n2")
    secured(issue, one)
    files = issue("n2")
    two.certificates = loaded(files, "n2")
    await one.start()
    await two.start()
    await joined(one, two)
    watching = asyncio.ensure_future(two.certificates.watch())
    before = two.certificates.current
    replaced = CLUSTER.issue("n2")
    replaced.write(files.certificate, files.key)
    await eventually(lambda: two.certificates and two.certificates.current is not before)

    assert [("up", "n2")] == one.events
    dialling = loaded(issue("n1"), "n1").current.dialling
    _, sink = await asyncio.open_connection("127.0.0.1", two.port, ssl=dialling, server_hostname="")
    shown = sink.get_extra_info("peercert")
    sink.transport.abort()
    watching.cancel()
    assert replaced.serial == int(shown["serialNumber"], 16)


async def test_an_authority_is_replaced_without_a_pause(nodes: Nodes, issue: Issue) -> None:
    """Both are trusted, then the nodes change over, then the old one is no longer trusted."""
    one, two = nodes.make("n1", "n2")
    files = {node.id: issue(node.id) for node in (one, two)}
    for node in (one, two):
        node.certificates = loaded(files[node.id], node.id)
        await node.start()
    await joined(one, two)

    def changed(change: Callable[[str, Files], None]) -> None:
        for node in (one, two):
            assert node.certificates is not None
            change(node.id, files[node.id])
            assert node.certificates.refresh()

    changed(lambda _, its: its.ca.write_bytes(CLUSTER.pem + STRANGE.pem))
    changed(lambda name, its: STRANGE.issue(name).write(its.certificate, its.key))
    changed(lambda _, its: its.ca.write_bytes(STRANGE.pem))
    assert [("up", "n2")] == one.events
    await one.stop()
    one.events.clear()
    await one.start()

    await joined(one, two)
    assert [("up", "n2")] == one.events
    await one.stop()
    one.certificates = loaded(issue("n1", by=CLUSTER), "n1")
    await one.start()
    await eventually(lambda: refused(two, "certificate"))


@pytest.mark.parametrize("wrong", ["cut", "foreign key", "other authority", "other name", "gone"])
def test_files_that_do_not_fit_change_nothing(
    issue: Issue, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The old files stay in use, the reason is logged once, and repaired files are loaded."""
    files = issue("n1")
    certificates = loaded(files, "n1")
    before = certificates.current
    match wrong:
        case "cut":
            files.certificate.write_bytes(files.certificate.read_bytes()[:200])
        case "foreign key":
            files.key.write_bytes(CLUSTER.issue("n1").key)
        case "other authority":
            STRANGE.issue("n1").write(files.certificate, files.key)
        case "other name":
            CLUSTER.issue("n2").write(files.certificate, files.key)
        case _:
            files.ca.unlink()
    caplog.clear()
    assert not certificates.refresh()
    assert not certificates.refresh()

    assert certificates.current is before
    assert certificates.stale
    assert ["ERROR"] == [record.levelname for record in caplog.records]
    assert "PRIVATE KEY" not in caplog.text
    CLUSTER.issue("n1").write(files.certificate, files.key)
    files.ca.write_bytes(CLUSTER.pem)
    assert certificates.refresh()
    assert not certificates.stale
    assert certificates.current is not before


@pytest.mark.parametrize("wrong", ["name", "authority", "expired", "missing"])
def test_a_node_that_could_not_prove_itself_does_not_begin(issue: Issue, wrong: str) -> None:
    """Every peer would refuse it after its start."""
    files = issue("n1", by=STRANGE if wrong == "authority" else CLUSTER)
    if wrong == "expired":
        CLUSTER.issue("n1", days=-1).write(files.certificate, files.key)
    if wrong == "missing":
        files.key.unlink()

    with pytest.raises(ConfigInvalid, match="must be"):
        link_certificates(files.settings(), node_id="n2" if wrong == "name" else "n1")
