"""Host limits: places are counted per host and in total."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.webhooks.host_limits import HostLimits


def test_a_full_host_leaves_places_to_others() -> None:
    """Other hosts can be called until all places are taken."""
    places = HostLimits(per_host=2, total=3)
    taken = [places.take(host) for host in ("a", "a", "a", "b", "b")]

    assert [True, True, False, True, False] == taken
    assert (0, 0, 0) == (places.free("a"), places.free("b"), places.free("c"))
    places.give_back("a")
    assert (1, 1) == (places.free("a"), places.free("b"))


@given(st.lists(st.sampled_from("abc")), st.integers(1, 3), st.integers(3, 6))
def test_a_released_place_can_be_taken_again(hosts: list[str], per_host: int, total: int) -> None:
    """No place is lost or added."""
    places = HostLimits(per_host=per_host, total=total)
    taken = [host for host in hosts if places.take(host)]

    assert len(taken) <= total
    assert all(taken.count(host) <= per_host for host in "abc")
    for host in taken:
        places.give_back(host)
    assert [min(per_host, total)] * 3 == [places.free(host) for host in "abc"]
