"""Members: the reading of what nodes say of each other."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.cli.operate.members import answered_as, members_of
from codeq_cluster.cli.support.times import Times


def _status(node: str, **away: str | None) -> Mapping[str, object]:
    peers = [
        {"id": peer, "httpAddr": f"http://{peer}", "connected": since is None, "awaySince": since}
        if since is not None
        else {"id": peer, "httpAddr": f"http://{peer}", "connected": True}
        for peer, since in away.items()
    ]
    return {"groups": [{"selfId": node, "selfHTTPAddr": f"http://{node}", "peers": peers}]}


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
