"""Members: the reading of what nodes say of each other."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.cli.operate.members import answered_as, members_of
from codeq_cluster.cli.support.times import Times


def _status(node: str, **away: str | None) -> Mapping[str, list[dict[str, object]]]:
    peers = [
        {"id": peer, "httpAddr": f"http://{peer}", "connected": since is None, "awaySince": since}
        if since is not None
        else {"id": peer, "httpAddr": f"http://{peer}", "connected": True}
        for peer, since in away.items()
    ]
    return {"groups": [{"selfId": node, "selfHTTPAddr": f"http://{node}", "peers": peers}]}


def _at(
    status: Mapping[str, list[dict[str, object]]], *, term: int, commit: int, leader: str = ""
) -> object:
    known = {"term": term, "commitIndex": commit, "leaderId": leader}
    return {"groups": [{**each, **known} for each in status["groups"]]}


def test_a_member_is_away_since_the_first_node_lost_it() -> None:
    """Each node that cannot reach it is named, and so is one that does not say since when."""
    earlier, later = "2026-01-31T11:01:00Z", "2026-01-31T11:02:00Z"
    members = members_of([_status("n1", n2=None, n3=later), _status("n2", n1=None, n3=earlier)])

    assert ["n1", "n2", "n3"] == list(members)
    assert ["", "", "n1 and n2 cannot reach it since 2026-01-31 11:01:00+00:00"] == [
        member.away(Times.UTC) for member in members.values()
    ]
    assert "n1 cannot reach it" == members_of([_status("n1", n3="")])["n3"].away(Times.UTC)


def test_a_member_that_nobody_asked_has_its_address() -> None:
    """A node knows its own address best; for another, any node's word serves."""
    members = members_of([_status("n1", n2=None), {"groups": "another form"}, None])

    assert {"n1": "http://n1", "n2": "http://n2"} == {
        name: member.url for name, member in members.items()
    }
    assert {"n1"} == members["n2"].reached_by


def test_an_answer_in_another_form_is_nobodys() -> None:
    """An answer without groups names no node."""
    assert ["n1", "", ""] == [answered_as(each) for each in (_status("n1"), {}, None)]


def test_a_node_that_is_no_member_any_more_tells_nothing_of_the_others() -> None:
    """It cannot reach those who refuse it, and knows some that may never be started again."""
    since = "2026-01-31T11:01:00Z"
    recovered = _at(_status("n1", n4=None), term=4, commit=20, leader="n1")
    old = _at(_status("n2", n1=since, n3=since), term=3, commit=90)
    removed = _at(_status("n5", n1=since), term=4, commit=19)

    members = members_of([old, recovered, removed])

    assert ["n1", "n2", "n4", "n5"] == list(members)
    assert [""] * 4 == [member.away(Times.UTC) for member in members.values()]


def test_a_node_that_others_do_not_know_yet_is_heard() -> None:
    """One that is behind lacks the entry that names the new node."""
    since = "2026-01-31T11:01:00Z"
    behind = _at(_status("n1", n2=None), term=4, commit=19, leader="n2")
    joined = _at(_status("n3", n1=since, n2=None), term=4, commit=20)

    members = members_of([behind, joined])

    assert f"n3 cannot reach it since {since[:10]} 11:01:00+00:00" == members["n1"].away(Times.UTC)


def test_a_node_that_has_begun_a_cluster_of_its_own_does_not_speak_for_the_others() -> None:
    """Its term may be a later one."""
    member = _at(_status("n1", n2=None, n4=""), term=4, commit=20, leader="n1")
    alone = _at(_status("n4"), term=5, commit=3, leader="n4")

    assert "n1 cannot reach it" == members_of([member, alone])["n4"].away(Times.UTC)
