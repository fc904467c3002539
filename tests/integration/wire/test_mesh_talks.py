"""Meshes on real sockets without faults: messages, calls, joins and losses."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

import codeq_cluster
from codeq_cluster.errors import (
    CodeqError,
    ConfigInvalid,
    LinkLost,
    MethodUnknown,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
)
from codeq_cluster.testing.ports import free_ports
from codeq_cluster.wire.messages import pack
from codeq_cluster.wire.refusals import HandshakeRefusal

from .conftest import SETTINGS, Nodes, eventually, joined, talk_until_one_leaves


class Brittle(list[tuple[str, int, dict[str, object]]]):
    """A receiver that fails."""

    def append(self, item: tuple[str, int, dict[str, object]]) -> None:
        """Fail."""
        raise ZeroDivisionError(item)


async def test_messages_arrive_in_order_from_every_peer(nodes: Nodes) -> None:
    """Three nodes, each direction in order, groups and senders kept apart."""
    made = await nodes.started("n1", "n2", "n3")
    for number in range(200):
        for node in made:
            for peer in node.peers:
                assert node.running.send(
                    peer, number % 4, pack({"number": number, "body": b"x" * 500})
                )

    await eventually(lambda: all(len(node.received) == 400 for node in made))
    for node in made:
        for peer in node.peers:
            got = [(g, m["number"]) for p, g, m in node.received if p == peer]
            assert got == [(number % 4, number) for number in range(200)]


async def test_frames_of_one_pass_leave_in_one_write(nodes: Nodes) -> None:
    """A large message and many small ones arrive whole, whatever the writes were."""
    one, two = await nodes.started("n1", "n2")
    one.running.send("n2", 0, pack({"body": b"x" * (SETTINGS.frame_bytes_max - 200)}))
    for number in range(1000):
        one.running.send("n2", 0, pack({"number": number}))

    await eventually(lambda: len(two.received) == 1001)
    assert list(range(1000)) == [message["number"] for _, _, message in two.received[1:]]


async def test_calls_are_answered_both_ways(nodes: Nodes) -> None:
    """Each node asks the other at the same time, many calls in flight."""

    async def echo(peer: str, method: str, body: object, timeout_s: float) -> object:
        assert 0 < timeout_s <= 5
        return [peer, method, body]

    one, two = nodes.make("n1", "n2")
    one.serve = two.serve = echo
    await one.start()
    await two.start()
    await joined(one, two)
    forth = [one.running.call("n2", "m", {"n": n}, timeout_s=5) for n in range(100)]
    back = [two.running.call("n1", "m", b"%d" % n, timeout_s=5) for n in range(100)]
    answers = await asyncio.gather(*forth, *back)

    assert answers[:100] == [["n1", "m", {"n": n}] for n in range(100)]
    assert answers[100:] == [["n2", "m", b"%d" % n] for n in range(100)]
    assert 100 == one.running.counters.calls == two.running.counters.calls_served


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (NotLeader("n9"), NotLeader),
        (NoLeader("none"), NoLeader),
        (MethodUnknown("no method m"), MethodUnknown),
        (OutcomeUnknown("who knows"), OutcomeUnknown),
        (Overloaded("the queue", retry_after_s=4), Overloaded),
    ],
)
async def test_a_handlers_exception_is_raised_at_the_caller(
    nodes: Nodes, raised: CodeqError, kind: type[CodeqError]
) -> None:
    """Refusals keep their kind and their fields."""

    async def refuse(peer: str, method: str, body: object, timeout_s: float) -> object:
        raise raised

    one, two = nodes.make("n1", "n2")
    two.serve = refuse
    await one.start()
    await two.start()
    await joined(one, two)

    with pytest.raises(kind, match=str(raised)) as caught:
        await one.running.call("n2", "m", None, timeout_s=5)
    assert vars(raised) == vars(caught.value)


async def test_a_handler_that_fails_leaves_the_outcome_unknown(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged where it happened; the caller only learns that it may have acted."""

    async def fail(peer: str, method: str, body: object, timeout_s: float) -> object:
        if method == "raise":
            raise KeyError(body)
        return object() if method == "unsendable" else b"x" * SETTINGS.frame_bytes_max

    one, two = nodes.make("n1", "n2")
    two.serve = fail
    await one.start()
    await two.start()
    await joined(one, two)
    for method in ("raise", "unsendable", "too-large"):
        with pytest.raises(OutcomeUnknown, match=method):
            await one.running.call("n2", method, None, timeout_s=5)

    assert ["raise", "unsendable", "too-large"] == [
        record.method for record in caplog.records if hasattr(record, "method")
    ]


async def test_a_handler_ends_with_the_time_of_its_caller(nodes: Nodes) -> None:
    """A deadline is sent along: the handler is cancelled, and the caller does not wait for it."""
    ended = asyncio.Event()

    async def dawdle(peer: str, method: str, body: object, timeout_s: float) -> object:
        try:
            return await asyncio.Event().wait()
        finally:
            ended.set()

    one, two = nodes.make("n1", "n2")
    two.serve = dawdle
    await one.start()
    await two.start()
    await joined(one, two)

    with pytest.raises((LinkLost, OutcomeUnknown)):
        await one.running.call("n2", "m", None, timeout_s=0.05)
    async with asyncio.timeout(60):
        await ended.wait()


async def test_calls_in_flight_are_bounded_on_both_sides(nodes: Nodes) -> None:
    """A call beyond the bound is refused before it is sent, or before its handler starts."""
    release = asyncio.Event()

    async def hold(peer: str, method: str, body: object, timeout_s: float) -> object:
        await release.wait()
        return body

    one, two = nodes.make("n1", "n2", settings=replace(SETTINGS, rpc_in_flight_max=3))
    two.serve = hold
    one.settings = replace(SETTINGS, rpc_in_flight_max=5)
    await one.start()
    await two.start()
    await joined(one, two)
    calls = [asyncio.ensure_future(one.running.call("n2", "m", n, timeout_s=10)) for n in range(6)]
    await eventually(lambda: sum(call.done() for call in calls) == 3)
    release.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert [0, 1, 2] == answers[:3]
    assert "calls from other nodes is full" in str(answers[3])
    assert "calls from other nodes is full" in str(answers[4])
    assert "calls to other nodes is full" in str(answers[5])
    assert all(isinstance(answer, Overloaded) for answer in answers[3:])


async def test_nothing_is_sent_to_a_peer_that_is_not_there(nodes: Nodes) -> None:
    """Messages are dropped and counted; calls are certainly not sent."""
    one, _ = nodes.make("n1", "n2")
    await one.start()

    assert not one.running.send("n2", 0, pack({}))
    assert not one.running.connected("n2")
    assert 1 == one.running.counters.dropped_messages
    with pytest.raises(PeerUnreachable):
        await one.running.call("n2", "m", None, timeout_s=1)


async def test_a_call_that_is_too_large_or_too_late_is_certainly_not_sent(nodes: Nodes) -> None:
    """A bound that is reached before sending leaves the connection as it is."""
    one, two = await nodes.started("n1", "n2")
    oversize = b"x" * SETTINGS.frame_bytes_max

    assert not one.running.send("n2", 0, pack({"body": oversize}))
    with pytest.raises(PeerUnreachable, match="over the link's"):
        await one.running.call("n2", "m", oversize, timeout_s=1)
    for timeout_s in (0.0, -1.0, float("nan")):
        with pytest.raises(PeerUnreachable, match="no time"):
            await one.running.call("n2", "m", None, timeout_s=timeout_s)
    assert one.running.send("n2", 0, pack({"still": "there"}))
    await eventually(lambda: two.received == [("n1", 0, {"still": "there"})])


async def test_a_peer_that_ends_is_refused_and_comes_back(nodes: Nodes) -> None:
    """A stopped process is told from a silent one at once, and its successor is found."""
    one, two = await nodes.started("n1", "n2")
    one.events.clear()
    await two.stop()
    await eventually(lambda: one.events)
    assert [("down", "n2", "refused")] == one.events

    two.incarnation += 1
    await two.start()
    await joined(one, two)

    assert [("down", "n2", "refused"), ("up", "n2")] == one.events
    assert one.running.send("n2", 1, pack({"again": True}))
    await eventually(lambda: two.received == [("n1", 1, {"again": True})])


async def test_a_killed_peer_is_refused_at_once(nodes: Nodes) -> None:
    """A process that dies silently is told from a paused one, three times in a row."""
    # A process that gets no CPU time for a while must not count as lost.
    patient = replace(
        SETTINGS, handshake_timeout_ms=60_000, dial_timeout_ms=60_000, silence_ms_max=60_000
    )
    one, two = nodes.make("n1", "n2", settings=patient)
    await one.start()
    expected = [("up", "n2"), ("down", "n2", "refused")]
    seen: list[list[tuple[str, ...]]] = []
    # On a very busy machine, a dying process can outlive the attempts that distinguish death from a
    # loss. So some kills more than three are allowed.
    for incarnation in range(1, 13):
        one.events.clear()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("peer_process.py")),
            str(two.port),
            one.address,
            str(incarnation),
            env={**os.environ, "PYTHONPATH": str(Path(codeq_cluster.__file__).parents[1])},
        )
        await eventually(lambda: "n2" in one.callers and one.running.connected("n2"))
        process.kill()
        await process.wait()
        await eventually(lambda: any("down" in event for event in one.events))
        seen.append(list(one.events))
        if seen[-3:] == [expected] * 3:
            break

    assert [expected] * 3 == seen[-3:]


async def test_a_receivers_bug_is_reported_and_ends_the_connection(nodes: Nodes) -> None:
    """The message after the failed one is not delivered."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    one, two = await nodes.started("n1", "n2")
    two.received = Brittle()
    one.running.send("n2", 0, pack({"number": 0}))
    one.running.send("n2", 0, pack({"number": 1}))

    await eventually(lambda: ("down", "n2", "lost") in one.events)
    assert isinstance(reported[0]["exception"], ZeroDivisionError)
    assert [] == two.received
    assert not any(two.running.counters.bad_frames.values())
    await joined(one, two)


async def test_a_node_with_new_data_is_kept_out(nodes: Nodes) -> None:
    """It knows the secret but has lost its votes, so it must not count for a majority."""
    one, two = nodes.make("n1", "n2")
    one.recognises = lambda _, incarnation: incarnation >= 9
    two.incarnation = 9
    await one.start()
    await two.start()
    await joined(one, two)
    await two.stop()
    two.incarnation = 1
    await two.start()
    await eventually(lambda: one.running.counters.refused_handshakes["lives"] > 0)

    assert not two.running.connected("n1")


async def test_a_call_ends_when_the_peer_does(nodes: Nodes) -> None:
    """The caller learns at once that no answer can come, and that the peer may have acted."""
    asked = asyncio.Event()

    async def hold(peer: str, method: str, body: object, timeout_s: float) -> object:
        asked.set()
        return await asyncio.Event().wait()

    one, two = nodes.make("n1", "n2")
    two.serve = hold
    await one.start()
    await two.start()
    await joined(one, two)
    call = asyncio.ensure_future(one.running.call("n2", "m", None, timeout_s=60))
    await asked.wait()
    await two.stop()

    with pytest.raises(LinkLost, match="n2"):
        await call
    assert 1 == one.running.counters.calls_lost


async def test_a_stopped_mesh_leaves_nothing(nodes: Nodes) -> None:
    """Waiting calls end, handlers are cancelled, no task and no callback remains."""
    cancelled = asyncio.Event()
    asked = asyncio.Event()

    async def hold(peer: str, method: str, body: object, timeout_s: float) -> object:
        asked.set()
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    before = asyncio.all_tasks()
    one, two = nodes.make("n1", "n2")
    one.serve = two.serve = hold
    await one.start()
    await two.start()
    await joined(one, two)
    mesh = one.running
    call = asyncio.ensure_future(mesh.call("n2", "m", None, timeout_s=60))
    back = asyncio.ensure_future(two.running.call("n1", "m", None, timeout_s=60))
    await asked.wait()
    await eventually(lambda: mesh.counters.calls_served == 1)
    one.events.clear()
    await mesh.stop()
    await mesh.stop()

    with pytest.raises(LinkLost):
        await call
    with pytest.raises(LinkLost):
        await back
    assert cancelled.is_set()
    assert [] == one.events
    assert not mesh.send("n2", 0, pack({}))
    assert 0 == len(mesh._link.open)
    await two.stop()
    assert asyncio.all_tasks() <= before


async def test_messages_queued_before_a_stop_are_still_sent(nodes: Nodes) -> None:
    """Messages of a node that transfers its leaderships and stops arrive."""
    one, two = await nodes.started("n1", "n2")
    for number in range(100):
        one.running.send("n2", 0, pack({"number": number}))
    await one.stop()

    await eventually(lambda: len(two.received) == 100)


@pytest.mark.parametrize(
    ("peers", "secret"),
    [({"n2": "nowhere"}, b"s"), ({"n1": "127.0.0.1:1"}, b"s"), ({"n2": "127.0.0.1:1"}, b"")],
)
async def test_a_wrong_configuration_is_refused_before_the_start(
    nodes: Nodes, peers: dict[str, str], secret: bytes
) -> None:
    """A bad address, a peer that is this node, and an empty secret each have a clear error."""
    (one,) = nodes.make("n1")
    one.peers = peers
    one.secret = secret

    with pytest.raises(ConfigInvalid):
        await one.start()


async def test_a_node_learns_which_peers_do_not_know_it(nodes: Nodes) -> None:
    """A forgotten node learns so when it dials, until it is known again."""
    one, two = await nodes.started("n1", "n2")
    assert not two.running.denied_as(HandshakeRefusal.STRANGER)

    one.running.know({})
    await eventually(lambda: two.running.denied_as(HandshakeRefusal.STRANGER) == ["n1"])

    one.running.know({"n2": two.address})
    await joined(one, two)
    assert not two.running.denied_as(HandshakeRefusal.STRANGER)


async def test_two_that_have_both_moved_find_each_other_where_they_are_on_record(
    nodes: Nodes,
) -> None:
    """Neither can tell the other its address before one of them is reached."""
    one, two = nodes.make("n1", "n2")
    gone = free_ports(1)[0]
    one.peers, two.peers = ({peer: f"127.0.0.1:{gone}"} for peer in ("n2", "n1"))
    await one.start()
    await two.start()

    one.running.know(one.peers, {"n2": [f"127.0.0.1:{gone}", two.address]})

    await joined(one, two)


async def test_a_forgotten_peer_is_reported_as_lost(nodes: Nodes) -> None:
    """A loss that was noticed but not reported yet is reported before the next dial."""
    one, two = await nodes.started("n1", "n2")
    two.running.know({})
    await eventually(lambda: one.running.denied_as(HandshakeRefusal.STRANGER) == ["n2"])

    one.running.know({})

    assert ["up", "down"] == [event[0] for event in one.events]


def test_the_mesh_runs_on_the_loop_of_production() -> None:
    """Messages, calls, a loss and a clean stop on uvloop."""

    async def story() -> None:
        nodes = Nodes()
        one, two = nodes.make("n1", "n2")
        await talk_until_one_leaves(one, two)
        await one.stop()
        assert 1 == len(asyncio.all_tasks())

    uvloop.run(story())
