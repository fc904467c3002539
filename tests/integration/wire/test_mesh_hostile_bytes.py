"""A listening mesh under invented bytes: each connection ends, alone, and is counted."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace

import cbor2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codeq_cluster.settings import LinkSettings
from codeq_cluster.testing.ports import free_ports
from codeq_cluster.wire.frames import plain_frame
from codeq_cluster.wire.messages import bundle, pack, raft_item

from .conftest import SETTINGS, HandMadePeer, Join, Node, Nodes, eventually

# A minute: silence must not end a connection here, however busy the machine is.
PATIENT: LinkSettings = replace(SETTINGS, silence_ms_max=60_000)
ROUNDS = 60

lengths = st.integers(0, 2**32 - 1).map(struct.Struct(">I").pack)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)
# The drawn bytes must be refused for certain; otherwise the test would wait for the deadline.
from_strangers = st.one_of(
    st.binary(min_size=1, max_size=3000).map(lambda data: data + b"\xff" * 4),
    st.tuples(lengths, st.binary(max_size=200), st.just(b"\xff" * 9000)).map(b"".join),
    values.map(cbor2.dumps).filter(lambda body: len(body) <= 4096).map(plain_frame),
)
sealed_bodies = st.one_of(
    st.binary(min_size=1, max_size=500),
    values.map(pack),
    st.integers(1, 100_000).map(lambda depth: b"\x91" * depth),
    st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\x91\xc6\xff\xff\xff\xff", b"\xdf" + b"\xff" * 8]),
)


def drawn(strategy: st.SearchStrategy[bytes], count: int) -> list[bytes]:
    """Return examples, the same in every run."""
    examples: list[bytes] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(example=strategy)
    def collect(example: bytes) -> None:
        examples.append(example)

    collect()
    return examples[:count]


async def lone(nodes: Nodes) -> Node:
    """Return node n2, started, whose peers are handmade."""
    (node,) = nodes.make("n2", settings=PATIENT)
    node.peers = {"n1": f"127.0.0.1:{free_ports(1)[0]}", "n3": f"127.0.0.1:{free_ports(1)[0]}"}
    await node.start()
    return node


async def still_heard(node: Node, good: HandMadePeer, number: int) -> None:
    """Check that a good peer's messages arrive, on the connection it has had all along."""
    good.sink.write(good.frame(bundle([raft_item(0, pack({"number": number}))])))
    await eventually(lambda: node.received[-1:] == [("n3", 0, {"number": number})])


def refusals(node: Node) -> int:
    """Return how many connections have been refused so far, for any reason."""
    counters = node.running.counters
    return sum((Counter(counters.bad_frames) + Counter(counters.refused_handshakes)).values())


@pytest.mark.parametrize("reads", [True, False])
async def test_made_up_greetings_are_refused_and_counted(
    nodes: Nodes, connect: Join, reads: bool
) -> None:
    """The sender may keep listening or reset the connection at once."""
    two = await lone(nodes)
    good = await (await connect(two, node_id="n3", session=1)).join()
    for number, data in enumerate(drawn(from_strangers, ROUNDS)):
        before = refusals(two)
        stranger = await connect(two, node_id="n1", session=1)
        stranger.sink.write(data)
        if reads:
            await stranger.ended()
            await eventually(lambda before=before: refusals(two) == before + 1)
        await stranger.close()
        await still_heard(two, good, number)

    await eventually(lambda: len(two.running._link.open) == 1)
    assert {"n3"} == two.callers


async def test_made_up_messages_of_a_peer_end_its_connection_alone(
    nodes: Nodes, connect: Join
) -> None:
    """Sealed by a node with the secret, they end its connection each time it reconnects."""
    two = await lone(nodes)
    good = await (await connect(two, node_id="n3", session=1)).join()
    for number, body in enumerate(drawn(sealed_bodies, ROUNDS)):
        if body == bundle([]):
            continue
        before = refusals(two)
        rogue = await connect(two, node_id="n1", session=number + 1)
        await rogue.join()
        rogue.sink.write(rogue.frame(body))
        await rogue.ended()
        await rogue.close()

        assert before + 1 == refusals(two)
        await still_heard(two, good, number)


async def test_frames_flipped_dropped_and_swapped_on_the_way_end_the_connection(
    nodes: Nodes, connect: Join
) -> None:
    """Nothing after the first wrong byte is delivered."""
    two = await lone(nodes)
    good = await (await connect(two, node_id="n3", session=1)).join()
    for number in range(ROUNDS):
        rogue = await connect(two, node_id="n1", session=number + 1)
        await rogue.join()
        frames = [
            rogue.frame(bundle([raft_item(0, pack({"from": "n1", "number": n}))])) for n in range(4)
        ]
        flipped = bytearray(frames[1])
        flipped[4 + number % (len(flipped) - 4)] ^= 1 << number % 8
        tampered = [
            [frames[0], bytes(flipped), frames[2]],
            [frames[0], frames[2], frames[3]],
            [frames[0], frames[2], frames[1]],
            [frames[0], frames[0], frames[1]],
        ][number % 4]
        two.received.clear()
        before = two.running.counters.bad_frames["mac"]
        rogue.sink.write(b"".join(tampered))
        await rogue.ended()
        await rogue.close()

        assert [("n1", 0, {"from": "n1", "number": 0})] == two.received
        assert before + 1 == two.running.counters.bad_frames["mac"]
        await still_heard(two, good, number)


async def test_a_frame_that_comes_in_pieces_takes_no_more_than_a_frame(
    nodes: Nodes, connect: Join
) -> None:
    """No memory is reserved for an announced frame; a whole one is checked at once."""
    two = await lone(nodes)
    rogue = await (await connect(two, node_id="n1", session=1)).join()
    (inbound,) = two.running._link.inbound.values()
    rogue.sink.write(struct.pack(">I", PATIENT.frame_bytes_max + 16))
    await eventually(lambda: inbound._reader.pending_bytes == 4)
    rogue.sink.write(b"x" * (PATIENT.frame_bytes_max - 1000))
    await rogue.sink.drain()
    await eventually(lambda: inbound._reader.pending_bytes > PATIENT.frame_bytes_max - 1100)
    rogue.sink.write(b"x" * 2000)
    await rogue.ended()
    await rogue.close()

    assert 1 == two.running.counters.bad_frames["mac"]
