"""Circuit breaker: closed, open and half-open; bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.webhooks.circuit_breaker import CircuitBreaker

HOST, OTHER = ("acme", "hooks.example:443"), ("acme", "other.example:443")


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the instant."""
        return self.now_s


def _breaker(clock: Clock, **bounds: float) -> CircuitBreaker:
    return CircuitBreaker(
        now_s=clock,
        failures_max=3,
        cooldown_s=bounds.get("cooldown_s", 5.0),
        cooldown_s_max=bounds.get("cooldown_s_max", 15.0),
        hosts_max=int(bounds.get("hosts_max", 10)),
    )


def _fail(breaker: CircuitBreaker, times: int, host: str = HOST) -> None:
    for _ in range(times):
        assert 0.0 == breaker.admit(host)
        breaker.failed(host)


def test_failures_in_a_row_open_the_circuit_of_that_host_alone() -> None:
    """One success in between resets the count."""
    breaker = _breaker(Clock())
    _fail(breaker, 2)
    breaker.succeeded(HOST)
    _fail(breaker, 2)
    before = breaker.wait_s(HOST)
    _fail(breaker, 1)

    assert 0.0 == before
    assert breaker.wait_s(HOST) == breaker.admit(HOST) == 5.0
    assert 0.0 == breaker.admit(OTHER)


def test_after_the_cool_down_one_request_probes_and_the_others_wait() -> None:
    """Its success closes the circuit for all."""
    clock = Clock()
    breaker = _breaker(clock)
    _fail(breaker, 3)
    clock.now_s += 4.0
    early = breaker.admit(HOST)
    clock.now_s += 1.0
    first, second = breaker.admit(HOST), breaker.admit(HOST)
    breaker.succeeded(HOST)

    assert (1.0, 0.0) == (early, first)
    assert second > 0.0
    assert 0.0 == breaker.admit(HOST)
    assert 0 == len(breaker)


def test_each_failed_probe_doubles_the_cool_down_up_to_its_cap() -> None:
    """A success resets the cool-down."""
    clock = Clock()
    breaker = _breaker(clock)
    _fail(breaker, 3)
    waits = []
    for _ in range(4):
        waits.append(breaker.wait_s(HOST))
        clock.now_s += waits[-1]
        _fail(breaker, 1)
    clock.now_s += breaker.wait_s(HOST)
    breaker.succeeded(HOST)
    _fail(breaker, 3)

    assert [5.0, 10.0, 15.0, 15.0] == waits
    assert 5.0 == breaker.wait_s(HOST)


def test_a_failure_of_a_request_from_before_does_not_lengthen_the_cool_down() -> None:
    """Requests already in progress when a circuit opens say nothing new."""
    clock = Clock()
    breaker = _breaker(clock)
    _fail(breaker, 3)
    clock.now_s += 2.0
    breaker.failed(HOST)

    assert 3.0 == breaker.wait_s(HOST)


def test_a_probe_that_says_nothing_leaves_its_place_to_another() -> None:
    """A cancelled request decides nothing."""
    clock = Clock()
    breaker = _breaker(clock)
    _fail(breaker, 3)
    clock.now_s += 5.0
    breaker.admit(HOST)
    during = breaker.wait_s(HOST)
    breaker.undecided(HOST)
    breaker.undecided(OTHER)

    assert during > 0.0
    assert 0.0 == breaker.admit(HOST)


def test_of_too_many_hosts_the_one_heard_of_longest_ago_is_forgotten() -> None:
    """Tenants choose the hosts, so memory must be bounded."""
    breaker = _breaker(Clock(), hosts_max=2)
    _fail(breaker, 3, "a")
    _fail(breaker, 2, "b")
    breaker.failed("a")
    _fail(breaker, 1, "c")

    assert 2 == len(breaker)
    assert breaker.wait_s("a") > 0.0
    _fail(breaker, 2, "b")
    assert 0.0 == breaker.wait_s("b")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("admit", "failed", "succeeded", "undecided")),
            st.sampled_from("abcd"),
            st.floats(0.0, 20.0),
        )
    )
)
def test_whatever_happens_a_host_is_tried_again_within_the_cap(
    events: list[tuple[str, str, float]],
) -> None:
    """Whatever happens, memory stays within its bound too."""
    clock = Clock()
    breaker = _breaker(clock, hosts_max=3)
    for name, host, passes_s in events:
        clock.now_s += passes_s
        getattr(breaker, name)(host)

        assert 0.0 <= breaker.wait_s(host) <= 15.0
        assert len(breaker) <= 3
    for host in "abcd":
        breaker.undecided(host)
    clock.now_s += 15.0

    assert [0.0] * 4 == [breaker.admit(host) for host in "abcd"]
