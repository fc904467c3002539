"""Handshake: both sides prove the secret, or nobody is let in."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.wire.handshake import Accepting, Dialling, Identity, Session, refusal
from codeq_cluster.wire.refusals import FrameRefusedError, HandshakeRefusal, HandshakeRefusedError


def identity(node_id: str, *, cluster_id: str = "c", secret: bytes = b"secret") -> Identity:
    return Identity(node_id=node_id, cluster_id=cluster_id, incarnation=7, secret=secret)


def accepting(me: Identity | None = None, *, stale: bool = False) -> Accepting:
    return Accepting(
        me or identity("n2"), {"n1", "n3"}, lambda *_: HandshakeRefusal.STALE if stale else None
    )


def dialling(me: Identity | None = None, peer: str = "n2") -> Dialling:
    return Dialling(me or identity("n1"), peer, session=1)


def shake(dialler: Dialling, acceptor: Accepting) -> tuple[Session, Session]:
    """Run the whole handshake; return the dialler's and the acceptor's session."""
    challenge, nobody = acceptor.receive(dialler.hello())
    assert nobody is None
    proof = dialler.receive(challenge)
    assert isinstance(proof, bytes)
    welcome, accepted = acceptor.receive(proof)
    dialled = dialler.receive(welcome)
    assert isinstance(dialled, Session)
    assert accepted is not None
    return dialled, accepted


def test_both_sides_of_one_cluster_agree() -> None:
    """Each learns who the other is, and what one seals with the other opens with."""
    dialled, accepted = shake(dialling(), accepting())

    assert ("n2", "n1") == (dialled.peer, accepted.peer)
    assert (7, 7) == (dialled.incarnation, accepted.incarnation)
    assert dialled.send_key == accepted.receive_key
    assert dialled.receive_key == accepted.send_key
    assert dialled.send_key != dialled.receive_key


def test_every_connection_has_keys_of_its_own() -> None:
    """A frame of one connection is worthless on another of the same nodes."""
    first, _ = shake(dialling(), accepting())
    second, _ = shake(dialling(), accepting())

    assert 4 == len({first.send_key, first.receive_key, second.send_key, second.receive_key})


def test_no_greeting_holds_the_secret_or_a_key() -> None:
    """What goes over the wire is nonces and proofs."""
    dialler, acceptor = dialling(), accepting()
    said = [dialler.hello()]
    said.append(acceptor.receive(said[-1])[0])
    proof = dialler.receive(said[-1])
    assert isinstance(proof, bytes)
    welcome, session = acceptor.receive(proof)
    assert session is not None
    said += [proof, welcome]

    assert not any(part in text for text in said for part in (b"secret", session.send_key))
    assert "secret" not in repr(identity("n1"))
    assert str(session.send_key) not in repr(session)


@pytest.mark.parametrize(
    ("dialler", "reason"),
    [
        (dialling(identity("n1", cluster_id="other")), HandshakeRefusal.CLUSTER),
        (dialling(identity("n2")), HandshakeRefusal.MYSELF),
        (dialling(identity("n9")), HandshakeRefusal.STRANGER),
        (dialling(peer="n3"), HandshakeRefusal.MISDIRECTED),
    ],
)
def test_who_does_not_belong_here_gets_no_challenge(
    dialler: Dialling, reason: HandshakeRefusal
) -> None:
    """A greeting that names the wrong cluster or node ends the handshake."""
    with pytest.raises(HandshakeRefusedError, match=reason):
        accepting().receive(dialler.hello())


def test_another_version_is_told_apart_from_garbage() -> None:
    """A later version may greet in another form; it is refused by its number."""
    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.VERSION):
        accepting().receive(cbor2.dumps(["codeq-link", 2, "whatever"]))


def test_a_dialler_without_the_secret_is_refused() -> None:
    """The proof is checked before anything is said about this node's own."""
    dialler, acceptor = dialling(identity("n1", secret=b"guess")), accepting()
    challenge, _ = acceptor.receive(dialler.hello())
    proof = dialler.receive(challenge)
    assert isinstance(proof, bytes)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.PROOF):
        acceptor.receive(proof)


def test_an_acceptor_without_the_secret_is_refused() -> None:
    """Nothing is ever said to an address whose owner cannot prove itself."""
    dialler = dialling()
    challenge, _ = accepting(identity("n2", secret=b"guess")).receive(dialler.hello())
    dialler.receive(challenge)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.PROOF):
        dialler.receive(cbor2.dumps(["welcome", 7, b"p" * 32]))


def test_a_proof_of_an_earlier_handshake_is_refused() -> None:
    """Fresh nonces make recorded greetings worthless."""
    recorded = dialling()
    hello = recorded.hello()
    proof = recorded.receive(accepting().receive(hello)[0])
    assert isinstance(proof, bytes)
    acceptor = accepting()
    acceptor.receive(hello)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.PROOF):
        acceptor.receive(proof)


def test_a_proof_cannot_be_reflected() -> None:
    """The dialler's own proof, sent back to it as a welcome, proves nothing."""
    dialler = dialling()
    proof = dialler.receive(accepting().receive(dialler.hello())[0])
    assert isinstance(proof, bytes)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.PROOF):
        dialler.receive(cbor2.dumps(["welcome", 7, cbor2.loads(proof)[1]]))


def test_a_connection_older_than_the_latest_is_refused() -> None:
    """A proved peer that is late is still refused."""
    dialler, acceptor = dialling(), accepting(stale=True)
    proof = dialler.receive(acceptor.receive(dialler.hello())[0])
    assert isinstance(proof, bytes)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.STALE):
        acceptor.receive(proof)


def test_a_dialler_learns_that_it_was_refused() -> None:
    """The refusal is said, so that both nodes' operators see it."""
    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.REFUSED_BY_PEER):
        dialling().receive(refusal(HandshakeRefusal.STRANGER))


@pytest.mark.parametrize("change", [True, -1, 2**64, 1.0, "1", None])
def test_numbers_are_read_strictly(change: object) -> None:
    """An incarnation is a 64-bit count and nothing that merely compares like one."""
    hello = cbor2.loads(dialling().hello())
    hello[6] = change

    with pytest.raises(FrameRefusedError):
        accepting().receive(cbor2.dumps(hello))


def test_a_welcome_without_a_challenge_is_refused() -> None:
    """Greetings come in one order only."""
    with pytest.raises(FrameRefusedError):
        dialling().receive(cbor2.dumps(["welcome", 7, b"p" * 32]))


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
words = st.sampled_from(["codeq-link", "proof", "challenge", "welcome", "refused", 1])


@given(greetings=st.lists(st.lists(words | plain, max_size=9) | plain, max_size=4))
def test_no_greetings_without_the_secret_lead_to_a_session(greetings: list[object]) -> None:
    """Whatever is said, in whatever order, both sides answer with a greeting or a refusal."""
    acceptor, dialler = accepting(), dialling()
    for greeting in greetings:
        try:
            _, session = acceptor.receive(cbor2.dumps(greeting))
        except (FrameRefusedError, HandshakeRefusedError):
            break
        assert session is None
    for greeting in greetings:
        try:
            answer = dialler.receive(cbor2.dumps(greeting))
        except (FrameRefusedError, HandshakeRefusedError):
            break
        assert isinstance(answer, bytes)
