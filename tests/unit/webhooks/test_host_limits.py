"""Host limits: places are counted per tenant and host."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.webhooks.host_limits import HostLimits


def test_a_full_host_leaves_places_to_other_hosts_and_other_tenants() -> None:
    """Only the tenant that has filled them waits."""
    places = HostLimits(per_host=2)
    taken = [places.take(("acme", "a")) for _ in range(3)]

    assert [True, True, False] == taken
    assert (0, 2, 2) == tuple(
        places.free(route) for route in (("acme", "a"), ("acme", "b"), ("globex", "a"))
    )
    places.give_back(("acme", "a"))
    assert 1 == places.free(("acme", "a"))


@given(st.lists(st.sampled_from("abc")), st.integers(1, 3))
def test_a_released_place_can_be_taken_again(hosts: list[str], per_host: int) -> None:
    """No place is lost or added."""
    places = HostLimits(per_host=per_host)
    taken = [host for host in hosts if places.take(("acme", host))]

    assert all(taken.count(host) <= per_host for host in "abc")
    for host in taken:
        places.give_back(("acme", host))
    assert [per_host] * 3 == [places.free(("acme", host)) for host in "abc"]
