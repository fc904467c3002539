"""A token bucket gives out as many tokens as its rate and burst allow, and no more."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.ratelimit.token_bucket import RateLimit, TokenBucket

MINUTE_NS = 60 * 10**9

limits = st.builds(
    RateLimit, per_minute=st.integers(1, 10_000_000), burst=st.integers(1, 1_000_000)
)
# (nanoseconds since the last call, tokens): from far below one token's time to far above it.
asks = st.lists(
    st.tuples(st.integers(0, 10 * MINUTE_NS) | st.integers(0, 10**6), st.integers(1, 1_000)),
    min_size=1,
    max_size=60,
)


@given(limit=limits, asks=asks, shares=st.integers(1, 7))
def test_no_stretch_of_time_sees_more_than_burst_and_rate(
    limit: RateLimit, asks: list[tuple[int, int]], shares: int
) -> None:
    """Between any two moments, at most the burst plus the rate's share of that time is taken."""
    bucket = TokenBucket(limit, now_ns=0, shares=shares)
    now_ns, taken = 0, []
    for pause_ns, tokens in asks:
        now_ns += pause_ns
        if tokens <= bucket.capacity and bucket.take(tokens, now_ns) == 0:
            taken.append((now_ns, tokens))

    burst = max(Fraction(limit.burst, shares), 1)
    for first, (begun_ns, _) in enumerate(taken):
        total = 0
        for at_ns, tokens in taken[first:]:
            total += tokens
            brought = Fraction((at_ns - begun_ns) * limit.per_minute, MINUTE_NS * shares)
            assert total <= burst + brought


@given(limit=limits, tokens=st.integers(1, 1_000), early_ns=st.integers(1, 10 * MINUTE_NS))
def test_a_refusal_says_to_the_nanosecond_when_the_tokens_are_there(
    limit: RateLimit, tokens: int, early_ns: int
) -> None:
    """A nanosecond earlier it refuses again; at that instant it gives them."""
    tokens = min(tokens, limit.burst)
    bucket = TokenBucket(limit, now_ns=0)
    assert 0 == bucket.take(limit.burst, 0)

    wait_ns = bucket.take(tokens, 0)

    assert wait_ns > 0
    early_ns = min(early_ns, wait_ns)
    assert early_ns == bucket.take(tokens, wait_ns - early_ns)
    assert 0 == bucket.take(tokens, wait_ns)


def test_a_bucket_starts_full_and_is_full_again_after_the_bursts_time() -> None:
    """A full bucket gains nothing."""
    bucket = TokenBucket(RateLimit(per_minute=60, burst=3), now_ns=0)
    assert bucket.full(0)
    assert 0 == bucket.take(3, 0)

    assert 2 == bucket.held(2_999_999_999)
    assert not bucket.full(2_999_999_999)
    assert bucket.full(3 * 10**9)
    assert 3 == bucket.held(100 * MINUTE_NS)


def test_a_refused_ask_takes_nothing() -> None:
    """The tokens stay for callers that ask for fewer."""
    bucket = TokenBucket(RateLimit(per_minute=60, burst=5), now_ns=0)
    assert 0 == bucket.take(3, 0)

    assert 10**9 == bucket.take(3, 0)
    assert 0 == bucket.take(2, 0)


def test_shares_of_a_limit_make_the_limit_together() -> None:
    """Each bucket has its part of the burst and of the rate."""
    limit = RateLimit(per_minute=60, burst=9)
    shares = [TokenBucket(limit, now_ns=0, shares=3) for _ in range(3)]

    assert [3, 3, 3] == [share.capacity for share in shares]
    assert [0, 0, 0] == [share.take(3, 0) for share in shares]
    assert [3 * 10**9] * 3 == [share.take(1, 0) for share in shares]


def test_a_share_of_less_than_a_token_holds_one() -> None:
    """With less than one token it would refuse for ever."""
    share = TokenBucket(RateLimit(per_minute=60, burst=1), now_ns=0, shares=3)

    assert 1 == share.capacity
    assert 0 == share.take(1, 0)
