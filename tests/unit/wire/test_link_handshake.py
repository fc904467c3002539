"""Handshake: both sides prove the secret, or there is no session."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.wire.handshake import VERSIONS, Accepting, Dialling, LinkIdentity, LinkSession
from codeq_cluster.wire.refusals import FrameRefusedError, HandshakeRefusal, HandshakeRefusedError


def identity(
    node_id: str,
    *,
    cluster_id: str = "c",
    secret: bytes = b"secret",
    versions: tuple[int, int] = VERSIONS,
    shards: int = 0,
) -> LinkIdentity:
    return LinkIdentity(
        node_id=node_id,
        cluster_id=cluster_id,
        incarnation=7,
        secret=secret,
        versions=versions,
        shards=shards,
    )


def accepting(me: LinkIdentity | None = None, *, stale: bool = False) -> Accepting:
    return Accepting(
        me or identity("n2"), {"n1", "n3"}, lambda *_: HandshakeRefusal.STALE if stale else None
    )


def dialling(me: LinkIdentity | None = None, peer: str = "n2") -> Dialling:
    return Dialling(me or identity("n1"), peer, session=1)


def shake(dialler: Dialling, acceptor: Accepting) -> tuple[LinkSession, LinkSession]:
    """Run the whole handshake; return the dialler's and the acceptor's session."""
    challenge, nobody = acceptor.receive(dialler.hello())
    assert nobody is None
    proof = dialler.receive(challenge)
    assert isinstance(proof, bytes)
    welcome, accepted = acceptor.receive(proof)
    dialled = dialler.receive(welcome)
    assert isinstance(dialled, LinkSession)
    assert accepted is not None
    return dialled, accepted


def test_both_sides_of_one_cluster_agree() -> None:
    """Each side learns the other's identity, and one side's seal key is the other's opening key."""
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
    """Only nonces and proofs go over the wire."""
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
def test_a_greeting_from_elsewhere_gets_no_challenge(
    dialler: Dialling, reason: HandshakeRefusal
) -> None:
    """A greeting that names the wrong cluster or node ends the handshake."""
    with pytest.raises(HandshakeRefusedError, match=reason):
        accepting().receive(dialler.hello())


def test_a_node_with_another_number_of_shards_is_refused() -> None:
    """It would look for tasks in other shards; a node of an earlier release says no number."""
    me = identity("n2", shards=2)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.SHARDS):
        accepting(me).receive(dialling(identity("n1", shards=3)).hello())
    for shards in (0, 2):
        assert "n1" == shake(dialling(identity("n1", shards=shards)), accepting(me))[1].peer


def test_an_unknown_node_is_told_that_its_data_is_from_before_a_recovery() -> None:
    """Its operator would let it in with that data otherwise, in vain."""
    acceptor = Accepting(
        identity("n2"),
        {"n3"},
        lambda _peer, incarnation, _session: (
            HandshakeRefusal.RECOVERED if incarnation == 7 else None
        ),
    )

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.RECOVERED):
        acceptor.receive(dialling().hello())


def test_another_version_is_told_apart_from_garbage() -> None:
    """A later version may greet in another form; it is refused by its number."""
    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.VERSION):
        accepting().receive(cbor2.dumps(["codeq-link", 8, 9, "whatever"]))


@pytest.mark.parametrize(
    ("dials", "accepts", "spoken"),
    [((1, 2), (1, 1), 1), ((1, 1), (1, 2), 1), ((1, 2), (1, 2), 2), ((2, 4), (1, 3), 3)],
)
def test_two_releases_speak_the_newest_version_that_both_know(
    dials: tuple[int, int], accepts: tuple[int, int], spoken: int
) -> None:
    """Either release may dial."""
    dialled, accepted = shake(
        dialling(identity("n1", versions=dials)), accepting(identity("n2", versions=accepts))
    )

    assert (spoken, spoken) == (dialled.version, accepted.version)


@pytest.mark.parametrize(("dials", "accepts"), [((2, 3), (1, 1)), ((1, 1), (2, 3))])
def test_releases_too_far_apart_learn_what_each_of_them_speaks(
    dials: tuple[int, int], accepts: tuple[int, int]
) -> None:
    """Both sides learn it, whichever side dials."""
    dialler = dialling(identity("n1", versions=dials))
    acceptor = accepting(identity("n2", versions=accepts))
    with pytest.raises(HandshakeRefusedError) as here:
        acceptor.receive(dialler.hello())
    with pytest.raises(HandshakeRefusedError) as there:
        dialler.receive(acceptor.refusal(here.value.reason))

    assert (HandshakeRefusal.VERSION, "version") == (here.value.reason, there.value.said)
    for refused, ours, theirs in ((here, accepts, dials), (there, dials, accepts)):
        assert f"this release speaks versions {ours[0]} to {ours[1]}" in refused.value.detail
        assert f"the other side's {theirs[0]} to {theirs[1]}" in refused.value.detail


def test_a_version_lowered_on_the_way_is_no_proof() -> None:
    """The proof covers the offered versions."""
    dialler = dialling(identity("n1", versions=(1, 2)))
    acceptor = accepting(identity("n2", versions=(1, 2)))
    hello = cbor2.loads(dialler.hello())
    assert [1, 2] == hello[1:3]
    hello[2] = 1
    proof = dialler.receive(acceptor.receive(cbor2.dumps(hello))[0])
    assert isinstance(proof, bytes)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.PROOF):
        acceptor.receive(proof)


def test_a_version_that_was_not_offered_is_no_answer() -> None:
    """A version beyond the highest is refused, and so is a number of another type."""
    for version in (2, 0, True):
        challenge = cbor2.dumps(["challenge", b"n" * 32, version])
        with pytest.raises(FrameRefusedError):
            dialling(identity("n1", versions=(1, 1))).receive(challenge)


def test_unknown_fields_of_a_later_hello_are_proved_and_ignored() -> None:
    """A release that offers this version may add fields; the proof covers them."""
    dialler, acceptor = dialling(), accepting()
    dialler._hello = cbor2.dumps([*cbor2.loads(dialler.hello()), "more"])

    assert "n1" == shake(dialler, acceptor)[1].peer


def test_a_dialler_without_the_secret_is_refused() -> None:
    """The proof is checked before this node reveals anything of its own."""
    dialler, acceptor = dialling(identity("n1", secret=b"guess")), accepting()
    challenge, _ = acceptor.receive(dialler.hello())
    proof = dialler.receive(challenge)
    assert isinstance(proof, bytes)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.PROOF):
        acceptor.receive(proof)


def test_an_acceptor_without_the_secret_is_refused() -> None:
    """A node sends nothing to an address whose owner cannot prove itself."""
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
    """The dialler's own proof, returned to it as a welcome, proves nothing."""
    dialler = dialling()
    proof = dialler.receive(accepting().receive(dialler.hello())[0])
    assert isinstance(proof, bytes)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.PROOF):
        dialler.receive(cbor2.dumps(["welcome", 7, cbor2.loads(proof)[1]]))


def test_a_connection_older_than_the_latest_is_refused() -> None:
    """A proved peer with an old connection is still refused."""
    dialler, acceptor = dialling(), accepting(stale=True)
    proof = dialler.receive(acceptor.receive(dialler.hello())[0])
    assert isinstance(proof, bytes)

    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.STALE):
        acceptor.receive(proof)


def test_a_dialler_learns_that_it_was_refused() -> None:
    """The refusal is sent, so that the operators of both nodes see it."""
    with pytest.raises(HandshakeRefusedError, match=HandshakeRefusal.REFUSED_BY_PEER):
        dialling().receive(accepting().refusal(HandshakeRefusal.STRANGER))


@pytest.mark.parametrize("change", [True, -1, 2**64, 1.0, "1", None])
def test_numbers_are_read_strictly(change: object) -> None:
    """An incarnation is a 64-bit count, and nothing that merely compares like one."""
    hello = cbor2.loads(dialling().hello())
    hello[7] = change

    with pytest.raises(FrameRefusedError):
        accepting().receive(cbor2.dumps(hello))


def test_a_welcome_without_a_challenge_is_refused() -> None:
    """Greetings have one order only."""
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
    """Any greetings in any order end in a greeting or a refusal on both sides."""
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
