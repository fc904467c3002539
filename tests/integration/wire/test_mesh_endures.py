"""Meshes on real sockets under attack and fault: strangers, replays, floods, cuts."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import replace

import pytest

from codeq_cluster.errors import LinkLost, PeerUnreachable
from codeq_cluster.testing.ports import free_ports
from codeq_cluster.wire.frames import FrameReader, plain_frame
from codeq_cluster.wire.handshake import Accepting, LinkIdentity
from codeq_cluster.wire.messages import bundle, pack, raft_item, request_item
from codeq_cluster.wire.refusals import HandshakeRefusal

from .conftest import SECRET, SETTINGS, HandMadePeer, Join, Node, Nodes, Wire, eventually, joined


async def lone(nodes: Nodes, **settings: int) -> Node:
    """Return node n2, started, whose peers n1 and n3 are handmade or absent."""
    (node,) = nodes.make("n2", settings=replace(SETTINGS, **settings))
    node.peers = {"n1": f"127.0.0.1:{free_ports(1)[0]}", "n3": f"127.0.0.1:{free_ports(1)[0]}"}
    await node.start()
    return node


def refused(node: Node, reason: str) -> int:
    return node.running.counters.refused_handshakes[reason]


def bad(node: Node, reason: str) -> int:
    return node.running.counters.bad_frames[reason]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": "n9"}, "stranger"),
        ({"id": "n2"}, "self"),
        ({"cluster_id": "other"}, "cluster"),
        ({"secret": b"guess"}, "proof"),
        ({"peers": {"n3": ""}}, "misdirected"),
    ],
)
async def test_who_is_no_peer_stays_out(
    nodes: Nodes, change: dict[str, object], reason: str
) -> None:
    """A node of another cluster, name or secret is refused and told, and never counts as up."""
    two = await lone(nodes)
    (other,) = nodes.make("n1")
    other.peers = {"n2": two.address}
    for name, value in change.items():
        setattr(other, name, value)
    other.peers = {"n3" if reason == "misdirected" else "n2": two.address}
    if reason == "self":
        other.peers = {"n3": two.address}
    await other.start()

    await eventually(lambda: refused(two, reason) >= 2)
    await eventually(lambda: refused(other, "refused-by-peer") >= 2)
    assert [] == other.events
    assert set() == two.callers


async def test_a_node_that_knows_no_peer_learns_its_peers_from_their_calls(
    nodes: Nodes,
) -> None:
    """A caller that proves itself is a peer from then on, if the mesh's owner agrees."""
    one, two, guess, unwanted = nodes.make("n1", "n2", "n3", "n4")
    two.peers = {}
    guess.secret = b"guess"
    called: dict[str, str] = {}

    def note(peer: str, address: str) -> None:
        called[peer] = address
        if peer == "n1":
            two.peers = {"n1": address}
            two.running.know(two.peers)

    knows = False
    two.welcomes, two.on_stranger = (lambda: not knows), note
    for node in (one, guess, unwanted):
        node.peers = {"n2": two.address}
    for node in (two, one, guess, unwanted):
        await node.start()
    await joined(one, two)
    await eventually(lambda: "n4" in called)
    await eventually(lambda: refused(two, "proof"))
    knows = True
    await eventually(lambda: refused(two, "stranger"))

    assert {"n1": one.address, "n4": unwanted.address} == called
    assert {"n1"} == two.callers
    assert ("up", "n2") not in guess.events


async def test_a_node_on_data_of_another_history_is_heard_and_told_nothing(nodes: Nodes) -> None:
    """Either side may dial; the node learns the reason."""
    one, two = nodes.make("n1", "n2")
    two.incarnation = 7
    one.is_past = lambda incarnation: incarnation == 7
    proved: list[str] = []

    def note(peer: str, incarnation: int) -> bool:
        proved.append(f"{peer} {incarnation}")
        return True

    two.recognises = note
    await one.start()
    await two.start()
    await eventually(lambda: refused(one, "recovered") >= 2)
    await eventually(
        lambda: two.running.denied_as(HandshakeRefusal.RECOVERED) == ["n1"] and "n1 1" in proved
    )
    assert not one.running.send("n2", 0, pack({"number": 1}))
    assert [] == one.events
    assert [] == two.received

    await two.stop()
    two.incarnation = 8
    await two.start()
    await joined(one, two)


async def test_a_recorded_session_cannot_be_played_again(nodes: Nodes) -> None:
    """All bytes of an honest session, sent once more, deliver nothing."""
    one, two = nodes.make("n1", "n2")
    async with Wire(two.port) as wire:
        one.peers = {"n2": f"127.0.0.1:{wire.port}"}
        await one.start()
        await two.start()
        await joined(one, two)
        one.running.send("n2", 0, pack({"number": 1}))
        await eventually(lambda: len(two.received) == 1)
        recorded = bytes(wire.said[-1])
        await one.stop()
        _, sink = await asyncio.open_connection("127.0.0.1", two.port)
        sink.write(recorded)

        await eventually(lambda: refused(two, "proof") == 1)
        assert 1 == len(two.received)
        sink.transport.abort()


async def test_a_repeated_frame_closes_the_connection(nodes: Nodes) -> None:
    """A frame sent twice on its own connection is noticed, and the nodes find each other again."""
    one, two = nodes.make("n1", "n2")
    async with Wire(two.port) as wire:
        one.peers = {"n2": f"127.0.0.1:{wire.port}"}
        await one.start()
        await two.start()
        await joined(one, two)
        before = len(wire.said[-1])
        one.running.send("n2", 0, pack({"number": 1}))
        await eventually(lambda: len(two.received) == 1)
        frame = bytes(wire.said[-1][before:])
        connections = len(wire.said)
        wire.say(frame)

        await eventually(lambda: bad(two, "mac") == 1)
        await eventually(lambda: len(wire.said) > connections)
        await joined(one, two)
        assert 1 == len(two.received)
        assert one.running.send("n2", 0, pack({"number": 2}))
        await eventually(lambda: len(two.received) == 2)
        await one.stop()
        await two.stop()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "oversize"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "oversize"),
        (struct.pack(">I", 4097), "oversize"),
        (struct.pack(">I", 0), "garbage"),
        (plain_frame(b"\xff\xff\xff"), "garbage"),
        (plain_frame(b"\xa0"), "schema"),
        (plain_frame(b"\x85\x01\x02\x03\x04\x05"), "schema"),
    ],
)
async def test_a_stranger_that_says_anything_else_is_closed(
    nodes: Nodes, data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Other protocols and garbage are counted, logged once, and have no other effect."""
    two = await lone(nodes)
    for _ in range(3):
        stranger = await HandMadePeer(two, node_id="n1", session=1).connect()
        stranger.sink.write(data)
        await stranger.ended()
        await stranger.close()

    assert 3 == bad(two, reason)
    assert 1 == sum(record.message == "link closed on a bad frame" for record in caplog.records)


async def test_a_stranger_that_hangs_up_in_the_middle_is_counted(nodes: Nodes) -> None:
    """Half a frame does not count as a frame."""
    two = await lone(nodes)
    stranger = await HandMadePeer(two, node_id="n1", session=1).connect()
    stranger.sink.write(struct.pack(">I", 100) + b"half")
    stranger.sink.write_eof()
    await stranger.ended()
    await stranger.close()

    await eventually(lambda: bad(two, "truncated") == 1)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (lambda peer: struct.pack(">I", SETTINGS.frame_bytes_max + 17), "oversize"),
        (lambda peer: struct.pack(">I", 3), "garbage"),
        (lambda peer: peer.frame(b"\xff"), "garbage"),
        (lambda peer: peer.frame(pack([[9]])), "schema"),
        (lambda peer: peer.frame(pack([[1, 0, {}]])), "schema"),
        (lambda peer: struct.pack(">I", 17) + os.urandom(17), "mac"),
        (lambda peer: (peer.frame(bundle([])), peer.frame(bundle([])))[1], "mac"),
    ],
)
async def test_a_peer_that_breaks_the_rules_is_closed_alone(
    nodes: Nodes, connect: Join, frame: object, reason: str
) -> None:
    """Another peer's connection is not affected."""
    two = await lone(nodes, silence_ms_max=60_000)
    good = await (await connect(two, node_id="n3")).join()
    rogue = await (await connect(two)).join()
    assert callable(frame)
    rogue.sink.write(frame(rogue))
    await rogue.ended()

    assert 1 == bad(two, reason)
    good.sink.write(good.frame(bundle([raft_item(1, pack({"fine": True}))])))
    await eventually(lambda: two.received == [("n3", 1, {"fine": True})])


async def test_a_stranger_that_says_nothing_is_cut_at_the_deadline(
    nodes: Nodes, connect: Join
) -> None:
    """Neither silence nor single bytes keep an unauthenticated connection open."""
    two = await lone(nodes)
    silent = await connect(two)
    slow = await connect(two)
    slow.sink.write(b"\x00")
    await silent.ended()
    await slow.ended()

    assert 2 == refused(two, "timeout")


async def test_strangers_cannot_keep_a_peer_out(nodes: Nodes, connect: Join) -> None:
    """Unknown connections are few, and a new one pushes the oldest out."""
    two = await lone(nodes, handshake_timeout_ms=60_000)
    strangers = [await connect(two) for _ in range(10)]
    peer = await (await connect(two)).join()
    peer.sink.write(peer.frame(bundle([raft_item(0, pack({}))])))
    await eventually(lambda: len(two.received) == 1)
    for stranger in strangers[:7]:
        await stranger.ended()

    assert 7 == refused(two, "crowded-out")
    assert not any(stranger.source.at_eof() for stranger in strangers[7:])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_flood_of_fresh_connections_crowds_no_handshake_out(
    nodes: Nodes, connect: Join, host: str
) -> None:
    """A member's address has places of its own, and an unknown one those of its share."""
    two = await lone(nodes, handshake_timeout_ms=60_000)
    two.running.know(dict.fromkeys(("n1", "n3"), f"{host}:1"))
    peer = await connect(two)
    proof = await peer.prove()
    flood = [await _from("127.0.0.2", two) for _ in range(10)]
    await eventually(lambda: refused(two, "crowded-out") >= 6)
    await peer.join(proof)
    peer.sink.write(peer.frame(bundle([raft_item(0, pack({}))])))
    await eventually(lambda: len(two.received) == 1)
    for raw in flood:
        raw.close()

    assert peer.session is not None


async def test_a_member_keeps_its_places_against_many_addresses(
    nodes: Nodes, connect: Join
) -> None:
    """Its address is known by its name alone, and by an earlier connection."""
    two = await lone(nodes, handshake_timeout_ms=60_000)
    two.running.know(dict.fromkeys(("n1", "n3"), "localhost:1"))
    await (await connect(two, session=1)).join()
    again = await connect(two, session=2)
    proof = await again.prove()
    flood = [await _from(f"127.0.0.{number}", two) for number in range(2, 12)]
    await eventually(lambda: refused(two, "crowded-out") >= 6)
    await again.join(proof)
    for raw in flood:
        raw.close()

    assert again.session is not None


async def test_a_node_comes_back_during_a_flood(nodes: Nodes) -> None:
    """The flood goes on while it restarts, and until both directions are up again."""
    one, two = await nodes.started("n1", "n2")
    flooded, back = asyncio.Event(), asyncio.Event()

    async def flood() -> None:
        opened: list[socket.socket] = []
        while not back.is_set():
            opened.append(await _from("127.0.0.2", two))
            if len(opened) > 20:
                flooded.set()
                opened.pop(0).close()
        for raw in opened:
            raw.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(flood())
        await flooded.wait()
        await one.stop()
        one.incarnation += 1
        await one.start()
        await joined(one, two)
        back.set()

    assert refused(two, "crowded-out") > 0


async def _from(address: str, node: Node) -> socket.socket:
    """Open a connection from an address of loopback, and say nothing."""
    raw = socket.socket()
    raw.setblocking(False)
    raw.bind((address, 0))
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", node.port))
    return raw


async def test_a_new_connection_replaces_the_old_one(nodes: Nodes, connect: Join) -> None:
    """Once the new connection is up, nothing of the peer's earlier one is delivered."""
    two = await lone(nodes)
    old = await (await connect(two, session=1)).join()
    old.sink.write(old.frame(bundle([raft_item(0, pack({"from": "old"}))])))
    await eventually(lambda: len(two.received) == 1)
    new = await (await connect(two, session=2)).join()
    old.sink.write(old.frame(bundle([raft_item(0, pack({"from": "the dead"}))])))
    await old.ended()
    new.sink.write(new.frame(bundle([raft_item(0, pack({"from": "new"}))])))
    await eventually(lambda: len(two.received) == 2)

    assert ["old", "new"] == [message["from"] for _, _, message in two.received]


async def test_a_connection_begun_before_the_latest_comes_too_late(
    nodes: Nodes, connect: Join
) -> None:
    """A proof delayed in the network does not replace the connection made after it."""
    two = await lone(nodes)
    late = await connect(two, session=1)
    proof = await late.prove()
    latest = await (await connect(two, session=2)).join()
    late.sink.write(proof)
    await late.ended()
    latest.sink.write(latest.frame(bundle([raft_item(0, pack({"from": "latest"}))])))
    await eventually(lambda: len(two.received) == 1)

    assert 1 == refused(two, "stale")


async def test_a_silent_cut_is_noticed(nodes: Nodes) -> None:
    """A wire that drops everything breaks no connection; the missing pings do."""
    # Several greetings must fail before the peer counts as lost, and each takes this long.
    hasty = replace(SETTINGS, handshake_timeout_ms=300)
    one, two = nodes.make("n1", "n2", settings=hasty)
    async with Wire(two.port) as wire:
        one.peers = {"n2": f"127.0.0.1:{wire.port}"}
        await one.start()
        await two.start()
        await joined(one, two)
        wire.frozen = True
        await eventually(lambda: ("down", "n2", "lost") in one.events)
        assert one.running.counters.silent_connections >= 1
        assert [("up", "n2"), ("down", "n2", "lost")] == one.events
        wire.frozen = False
        wire.cut()

        await joined(one, two)
        assert ("up", "n2") == one.events[-1]
        await one.stop()
        await two.stop()


async def test_an_idle_connection_stays(nodes: Nodes) -> None:
    """Pings alone keep both ends up, many times over the longest silence."""
    one, two = await nodes.started("n1", "n2")
    start = one.running.counters.frames_out
    await eventually(lambda: one.running.counters.frames_out > start + 30)

    assert [("up", "n2")] == one.events
    assert [("up", "n1")] == two.events


async def test_a_broken_connection_is_dialled_at_once(nodes: Nodes) -> None:
    """Each loss is reported once as down and once as up, whichever side broke it."""
    one, two = nodes.make("n1", "n2")
    async with Wire(two.port) as wire:
        one.peers = {"n2": f"127.0.0.1:{wire.port}"}
        await one.start()
        await two.start()
        await joined(one, two)
        wire.cut()
        await eventually(lambda: len(one.events) == 3)

        assert [("up", "n2"), ("down", "n2", "lost"), ("up", "n2")] == one.events
        await one.stop()
        await two.stop()


async def test_a_peer_that_dies_slowly_is_judged_where_it_was_reached(nodes: Nodes) -> None:
    """A refusal at another of its addresses shows nothing about its process."""
    one, two = nodes.make("n1", "n2")
    async with Wire(two.port) as wire:
        one.peers = {"n2": f"127.0.0.1:{wire.port}"}
        await one.start()
        one.running.know(one.peers, {"n2": [f"127.0.0.1:{free_ports(1)[0]}"]})
        await two.start()
        await joined(one, two)
        wire.slams = 6
        wire.cut()
        await eventually(lambda: len(one.events) == 3)

        assert not wire.slams
        assert [("up", "n2"), ("down", "n2", "lost"), ("up", "n2")] == one.events
        await one.stop()
        await two.stop()


async def test_a_peer_that_hangs_up_on_every_connection_is_dialled_ever_slower(
    nodes: Nodes,
) -> None:
    """Two nodes that cannot talk do not keep each other busy."""
    (one,) = nodes.make("n1")
    one.peers = {"n2": f"127.0.0.1:{free_ports(1)[0]}"}
    two = LinkIdentity(node_id="n2", cluster_id="c", incarnation=1, secret=SECRET)
    greeted: list[float] = []

    async def hang_up(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        accepting, reader, session = Accepting(two, {"n1"}, lambda *_: None), FrameReader(), None
        while session is None and (data := await source.read(2**16)):
            reader.feed(data)
            while session is None and (body := reader.next()) is not None:
                answer, session = accepting.receive(body)
                sink.write(plain_frame(answer))
        greeted.append(asyncio.get_running_loop().time())
        sink.close()
        await sink.wait_closed()

    async with await asyncio.start_server(
        hang_up, "127.0.0.1", int(one.peers["n2"].rpartition(":")[2])
    ):
        await one.start()
        await eventually(lambda: len(greeted) == 10)
        await one.stop()

    # Four attempts at once, then pauses of at least half of 10, 20, 40, 80 and 100 ms.
    assert greeted[-1] - greeted[0] >= 0.125
    assert {("up", "n2"), ("down", "n2", "lost")} == set(one.events)


async def test_the_queue_of_a_peer_that_does_not_read_is_bounded(
    nodes: Nodes, connect: Join
) -> None:
    """Messages beyond the bound are dropped and counted, calls refused, memory stays."""
    (two,) = nodes.make("n2", settings=replace(SETTINGS, silence_ms_max=60_000))
    (one,) = nodes.make("n1", settings=replace(SETTINGS, silence_ms_max=60_000))
    async with Wire(one.port) as wire:
        two.peers = {"n1": f"127.0.0.1:{wire.port}"}
        one.peers = {"n2": two.address}
        await one.start()
        await two.start()
        await joined(one, two)
        wire.flows.clear()
        dropped = 0
        # The kernel's own buffers take a few MiB before the mesh's fill.
        for _ in range(1000):
            dropped += not two.running.send("n1", 0, pack({"body": b"x" * 2**16}))
            await asyncio.sleep(0)
        transport = two.running._link.outbound["n1"]._transport
        assert transport is not None

        assert dropped > 0
        assert dropped == two.running.counters.dropped_messages
        assert transport.get_write_buffer_size() <= SETTINGS.queue_bytes_max
        with pytest.raises(PeerUnreachable, match="queue full"):
            await two.running.call("n1", "m", b"x" * 2**16, timeout_s=1)
        await one.stop()
        await two.stop()


async def test_a_call_ends_when_the_connection_it_left_on_does(nodes: Nodes) -> None:
    """An answer might still come over a new connection, but nobody knows if the call arrived."""
    asked = asyncio.Event()

    async def hold(peer: str, method: str, body: object, timeout_s: float) -> object:
        asked.set()
        return await asyncio.Event().wait()

    one, two = nodes.make("n1", "n2")
    two.serve = hold
    async with Wire(two.port) as wire:
        one.peers = {"n2": f"127.0.0.1:{wire.port}"}
        await one.start()
        await two.start()
        await joined(one, two)
        call = asyncio.ensure_future(one.running.call("n2", "m", None, timeout_s=60))
        await asked.wait()
        wire.cut()

        with pytest.raises(LinkLost, match="broke before an answer came"):
            await call
        await one.stop()


async def test_a_peer_that_dials_is_dialled_at_once(nodes: Nodes) -> None:
    """A node that has given up on a peer for minutes need not wait until they are over."""
    slow = replace(SETTINGS, redial_ms=1_800_000, redial_ms_max=1_800_000)
    one, two = nodes.make("n1", "n2", settings=slow)
    async with Wire(two.port) as wire:
        wire.slams = 1
        one.peers = {"n2": f"127.0.0.1:{wire.port}"}
        await one.start()
        await eventually(lambda: wire.slams == 0)
        await two.start()

        await joined(one, two)
        await one.stop()


async def test_an_answer_is_not_sent_to_the_next_process(nodes: Nodes, connect: Join) -> None:
    """A handler that outlives its caller's connection sends no answer."""
    release = asyncio.Event()

    async def hold(peer: str, method: str, body: object, timeout_s: float) -> object:
        await release.wait()
        return body

    one, two = nodes.make("n1", "n2")
    two.serve = hold
    await one.start()
    await two.start()
    await joined(one, two)
    # An incarnation later than any clock's, so that the real n1 cannot take its place back.
    stand_in = await (await connect(two, session=2**63)).join()
    stand_in.sink.write(stand_in.frame(bundle([request_item(1, "m", 60.0, pack(None))])))
    await eventually(lambda: two.running.counters.calls_served == 1)
    await stand_in.close()
    await eventually(lambda: "n1" not in two.callers)
    release.set()

    await eventually(lambda: two.running.counters.dropped_answers == 1)
