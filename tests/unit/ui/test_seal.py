"""Seals: data that a browser keeps for the cluster."""

from __future__ import annotations

from codeq_cluster.ui.seal import Seal

HERE = Seal("the secret of a cluster", cluster_id="a")


def test_a_seal_of_one_node_is_opened_by_another() -> None:
    """Both derive their keys from the cluster's secret."""
    sealed = HERE.close(b"token")

    assert b"token" == Seal("the secret of a cluster", cluster_id="a").open(sealed)


def test_nobody_without_the_secret_opens_or_makes_a_seal() -> None:
    """A node with another secret, another cluster or no secret cannot open it."""
    sealed = HERE.close(b"token")
    strangers = [
        Seal("another secret", cluster_id="a"),
        Seal("the secret of a cluster", cluster_id="b"),
        Seal("", cluster_id="a"),
    ]

    assert [None, None, None] == [stranger.open(sealed) for stranger in strangers]
    assert [None, None, None] == [HERE.open(stranger.close(b"token")) for stranger in strangers]


def test_an_altered_seal_is_refused() -> None:
    """A seal with changed, missing or added bytes is refused, and so is any other text."""
    sealed = HERE.close(b"token")
    altered = [
        sealed[:position] + ("A" if sealed[position] != "A" else "B") + sealed[position + 1 :]
        for position in range(len(sealed) - 1)
    ]
    others = [sealed[:-4], sealed + "AAAA", "", "A", "no base64!", "ü" * 40, "A" * 5000]

    assert not [each for each in (*altered, *others) if HERE.open(each) is not None]


def test_the_same_is_sealed_differently_every_time() -> None:
    """Two sessions of one token have different texts and different marks."""
    sealed = [HERE.close(b"token") for _ in range(3)]

    assert 3 == len(set(sealed))
    assert 3 == len({HERE.mark(each) for each in sealed})


def test_a_mark_belongs_to_one_seal_of_one_cluster() -> None:
    """Every node computes the same mark, and it cannot be computed without the secret."""
    sealed = HERE.close(b"token")

    assert Seal("the secret of a cluster", cluster_id="a").mark(sealed) == HERE.mark(sealed)
    assert HERE.mark(sealed) != Seal("another secret", cluster_id="a").mark(sealed)
