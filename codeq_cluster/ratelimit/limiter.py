"""Limiter: rate limits of tenants, counted once for the whole cluster.

One node owns a tenant's buckets: the leader of the tenant's home shard, which keeps them in memory.
The others ask it over the link for a little more than they need, and remember its answer for a
moment. So many small requests, or a flood of refused ones, cause only a few calls.

Limits never cost availability. If the owner cannot be asked, each node grants its own share of the
limit. A new owner starts with full buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.core.sharding import home_shard
from codeq_cluster.errors import CodeqError, LimitExceeded, NotLeader, Overloaded
from codeq_cluster.ratelimit.lru import LruTable
from codeq_cluster.ratelimit.token_bucket import RateLimit, Scope, TokenBucket
from codeq_cluster.ratelimit.token_lease import HOLD_NS, TokenLease
from codeq_cluster.settings import RateLimitSettings, RateSettings, TenantRateLimit
from codeq_cluster.wire import Mesh

BORROW = "borrow"

# Do not wait longer for an owner: a limit must not slow the requests it admits.
OWNER_TIMEOUT_S = 0.25
# The owner grants a tenth of a second's tokens if the asking node needs fewer. So each other node
# can exceed the burst by at most that number. Low rates are exact.
AHEAD_PARTS = 10
# About 300 bytes each; a bucket that is full again takes no space.
BUCKETS_MAX = 100_000

_SECOND_NS = 10**9
_Key = tuple[Scope, str]  # The scope and the tenant.


class RateLimits:
    """The configured limit of every tenant.

    Attributes:
        unlimited: Scopes in which no tenant has a limit.
    """

    def __init__(self, settings: RateLimitSettings) -> None:
        self._general: Mapping[Scope, RateLimit | None] = {
            Scope.PRODUCER: _limit(settings.producer),
            Scope.WORKER: _limit(settings.worker),
            Scope.ADMIN: _limit(settings.admin),
            Scope.WEBHOOK: _limit(settings.webhook),
        }
        self._own: Mapping[_Key, RateLimit | None] = {
            (Scope(each.scope), each.tenant): _limit(each) for each in settings.tenants
        }
        limited = {scope for (scope, _), limit in self._own.items() if limit}
        self.unlimited = frozenset(
            scope for scope, limit in self._general.items() if not limit and scope not in limited
        )

    def of(self, scope: Scope, tenant: str) -> RateLimit | None:
        """Return the tenant's limit, None for none."""
        general = self._general[scope]
        return self._own.get((scope, tenant), general) if self._own else general


def _limit(settings: RateSettings | TenantRateLimit) -> RateLimit | None:
    per_minute, burst = settings.requests_per_minute, settings.burst_size
    return RateLimit(per_minute=per_minute, burst=burst) if per_minute and burst else None


class RateLimiter:
    """Takes tokens of every tenant's rate limits for the requests on this node.

    Attributes:
        unlimited: Scopes in which every request passes.

    Args:
        replicas: This node's, in the order of shards; they know who leads.
        limits: The same on every node.
        now_ns: Monotonic clock, nanoseconds.
        on_refused: Called with (scope, operation) of every refusal.
        on_answered: Called with (method, seconds) of every call another node has answered.
        owner_timeout_s: How long to wait for an owner.
    """

    def __init__(
        self,
        *,
        node_id: str,
        nodes: Callable[[], int],
        replicas: Sequence[Engine],
        calls: Mesh,
        limits: RateLimits,
        now_ns: Callable[[], int],
        on_refused: Callable[[str, str], None],
        on_answered: Callable[[str, float], None],
        owner_timeout_s: float = OWNER_TIMEOUT_S,
    ) -> None:
        self._node_id = node_id
        self._nodes = nodes
        self._replicas = replicas
        self._calls = calls
        self._limits = limits
        self.unlimited = limits.unlimited
        self._now_ns = now_ns
        self._on_refused = on_refused
        self._on_answered = on_answered
        self._owner_timeout_s = owner_timeout_s
        self._silent: dict[str, int] = {}  # By owner: when it may be asked again.

        def full(bucket: TokenBucket) -> bool:
            return bucket.full(now_ns())

        def idle(token_lease: TokenLease) -> bool:
            return token_lease.idle(now_ns())

        self._owned = LruTable[_Key, TokenBucket](idle=full, entries_max=BUCKETS_MAX)
        self._shares = LruTable[_Key, TokenBucket](idle=full, entries_max=BUCKETS_MAX)
        self._token_leases = LruTable[_Key, TokenLease](idle=idle, entries_max=BUCKETS_MAX)

    def most(self, scope: Scope, tenant: str) -> int | None:
        """Return the highest cost that a request can have, None without a limit."""
        limit = self._limits.of(scope, tenant)
        return limit.burst if limit else None

    async def spend(self, scope: Scope, operation: str, tenant: str, cost: int = 1) -> None:
        """Take tokens for a request.

        Args:
            operation: The operation's name, for the answer and the metric.
            cost: Tokens, all or none; at most `most`.

        Raises:
            LimitExceeded: Too few tokens are left; none is taken.
        """
        wait_s = await self.wait_s(scope, operation, tenant, cost)
        if wait_s:
            raise LimitExceeded(scope=scope, operation=operation, retry_after_s=math.ceil(wait_s))

    async def wait_s(self, scope: Scope, operation: str, tenant: str, cost: int = 1) -> float:
        """Take tokens as `spend` does; return 0 if taken, else the seconds to wait.

        For calls to a webhook, which are deferred instead of refused.
        """
        limit = self._limits.of(scope, tenant)
        if limit is None:
            return 0.0
        wait_ns = await self._take((scope, tenant), limit, cost)
        if wait_ns:
            self._on_refused(scope, operation)
        return wait_ns / _SECOND_NS

    # -- answering a peer ------------------------------------------------------------------------

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Grant a peer tokens of a tenant whose home shard this node leads: [tokens, wait in ns].

        Raises:
            NotLeader: This node does not lead that shard; nothing was done.
            ValueError: The body does not fit the method.
        """
        del peer, method, timeout_s
        scope, tenant, least, needed = msgspec.convert(body, tuple[Scope, str, int, int])
        if not 0 < least <= needed:
            raise ValueError(f"tokens out of range: {least}, {needed}")
        leader = self._leader(tenant)
        if leader != self._node_id:
            raise NotLeader(leader)
        return self._grant((scope, tenant), least, needed)

    def _grant(self, key: _Key, least: int, needed: int) -> tuple[int, int]:
        limit = self._limits.of(*key)
        if limit is None:
            return needed, 0  # The nodes' configurations differ; the owner's decides.
        now_ns = self._now_ns()
        bucket = self._bucket(key, limit, now_ns)
        held = bucket.held(now_ns)
        if held < least:
            # Only a node with another configuration asks for more than a full bucket holds.
            return 0, bucket.take(least, now_ns) if least <= bucket.capacity else HOLD_NS
        granted = min(needed, held)
        # Do not grant a whole burst to the first node that asks: other nodes' callers would be
        # refused.
        ahead = limit.per_minute // (60 * AHEAD_PARTS)
        granted = max(granted, min(ahead, held // self._nodes()))
        bucket.take(granted, now_ns)
        return granted, 0

    # -- asking the owner ------------------------------------------------------------------------

    async def _take(self, key: _Key, limit: RateLimit, cost: int) -> int:
        """Return 0 if the tokens are taken, else the nanoseconds to wait."""
        if self._leader(key[1]) == self._node_id:
            return self._from_own(key, limit, cost)
        token_lease = self._token_leases.of(key, TokenLease)
        wait_ns = token_lease.take(cost, self._now_ns())
        if wait_ns is not None:
            return wait_ns
        token_lease.needed += cost
        try:
            async with token_lease.asking:
                # The answer to the previous request may serve this one too.
                wait_ns = token_lease.take(cost, self._now_ns())
                return (
                    await self._ask_owner(token_lease, key, limit, cost)
                    if wait_ns is None
                    else wait_ns
                )
        finally:
            token_lease.needed -= cost

    async def _ask_owner(
        self, token_lease: TokenLease, key: _Key, limit: RateLimit, cost: int
    ) -> int:
        """Ask the owner; if it cannot be asked, take tokens from this node's own share."""
        scope, tenant = key
        owner, begun_ns = self._leader(tenant), self._now_ns()
        if owner == self._node_id:
            return self._from_own(key, limit, cost)
        if owner is None or begun_ns < self._silent.get(owner, 0):
            return self._from_share(key, limit, cost)
        # Taken first: requests that arrive meanwhile must not spend these tokens a second time.
        held = token_lease.take_all(begun_ns)
        body = [scope.value, tenant, cost - held, max(cost, token_lease.needed) - held]
        topic = home_shard(tenant, len(self._replicas))
        try:
            said = await self._calls.call(
                owner, BORROW, body, timeout_s=self._owner_timeout_s, topic=topic
            )
            granted, wait_ns = msgspec.convert(said, tuple[int, int])
        except (CodeqError, msgspec.ValidationError) as error:
            # Only an owner that cannot be reached at all is not asked for other tenants either.
            if not isinstance(error, NotLeader | Overloaded | msgspec.ValidationError):
                self._silent[owner] = self._now_ns() + HOLD_NS
            token_lease.put(held, self._now_ns())
            return self._from_share(key, limit, cost)
        now_ns = self._now_ns()
        self._on_answered(BORROW, (now_ns - begun_ns) / _SECOND_NS)
        if granted:
            token_lease.put(held + granted - cost, now_ns)
            return 0
        token_lease.put(held, now_ns)
        token_lease.refuse(cost, wait_ns, now_ns)
        return wait_ns

    def _from_own(self, key: _Key, limit: RateLimit, cost: int) -> int:
        now_ns = self._now_ns()
        return self._bucket(key, limit, now_ns).take(cost, now_ns)

    def _from_share(self, key: _Key, limit: RateLimit, cost: int) -> int:
        now_ns = self._now_ns()
        share = self._shares.of(
            key, partial(TokenBucket, limit, now_ns=now_ns, shares=self._nodes())
        )
        # A batch that fits the whole limit must not be too large for a share of it.
        return share.take(min(cost, share.capacity), now_ns)

    def _bucket(self, key: _Key, limit: RateLimit, now_ns: int) -> TokenBucket:
        return self._owned.of(key, partial(TokenBucket, limit, now_ns=now_ns))

    def _leader(self, tenant: str) -> str | None:
        return self._replicas[home_shard(tenant, len(self._replicas))].leader
