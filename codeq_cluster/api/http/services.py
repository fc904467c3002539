"""Services: what the handlers of one node may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from codeq_cluster.api.http.access_log import AccessLog
from codeq_cluster.api.http.bodies import Bodies
from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.strangers import Strangers
from codeq_cluster.api.http.virtual_time import VirtualTime
from codeq_cluster.api.http.waits import Waits
from codeq_cluster.artifacts import ArtifactStore
from codeq_cluster.auth import Authenticator
from codeq_cluster.backup.job import BackupJobs
from codeq_cluster.broker.engine.reads import Reads
from codeq_cluster.broker.feed.feed import Feed
from codeq_cluster.broker.polls import Polls
from codeq_cluster.broker.service import Broker
from codeq_cluster.fair_shares import FairShares, NestedShares
from codeq_cluster.fair_turns import FairTurns
from codeq_cluster.membership.service import MembershipService
from codeq_cluster.ratelimit.limiter import RateLimiter
from codeq_cluster.routing.leadership import LeadershipTransfers
from codeq_cluster.settings import NodeSettings
from codeq_cluster.telemetry import Metrics
from codeq_cluster.telemetry.tracing import Tracing
from codeq_cluster.webhooks.ssrf_guard.targets import Targets

_PREVIEWS_AT_ONCE = 2  # Each keeps a processor busy, which the loop needs too.
_IMPORTS_AT_ONCE = 4  # Parts on one node: reading and decoding hold several copies of each.


class CallerShares:
    """What callers of one node may take, each at most a share.

    Args:
        quotas: Enforces the rate limits.

    Attributes:
        callers: Tells them apart by their addresses.
        turns: The requests in progress; tenants take turns.
        waits: The requests that wait for something.
        strangers: What is taken before a token is verified.
        bodies: The room for bodies, a share a tenant.
        previews: The schedules whose instants are computed, a share a tenant.
        imports: The parts of imports in memory, a share a tenant.
        import_checks: The line of those whose records are checked.
        events: The watchers of tasks, a share a tenant.
    """

    def __init__(self, settings: NodeSettings, quotas: RateLimiter) -> None:
        self.quotas = quotas
        self.callers = Callers(settings.proxies)
        self.turns = FairTurns(settings.limits.requests_in_progress, name="the room for requests")
        self.waits = Waits(settings.limits, self.turns)
        self.strangers = Strangers(settings.limits, self.callers)
        self.bodies = Bodies(settings)
        self.previews = FairShares(_PREVIEWS_AT_ONCE, name="the room for previews")
        self.imports = FairShares(_IMPORTS_AT_ONCE, name="the room for imports")
        self.import_checks = Reads(name="the line of imports")
        self.events = NestedShares(
            settings.limits.event_streams_max, name="the room for watchers of events"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTelemetry:
    """What is recorded of each request.

    Attributes:
        tracing: Makes the spans; None for none.
    """

    metrics: Metrics
    access_log: AccessLog
    tracing: Tracing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterServices:
    """What operators change.

    Attributes:
        transfers: Knows the leaders of the shards, and transfers leaderships.
        members: Knows and changes the members.
        backups: The backups this node takes; None when it has no place for them.
    """

    transfers: LeadershipTransfers
    members: MembershipService
    backups: BackupJobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services shared by the handlers of one node, which starts and stops them.

    Attributes:
        now_ms: Wall clock for values that are only shown, Unix milliseconds.
        polls: The workers that have claimed on this node.
        targets: Decides which URLs may be registered.
        feed: What happens to tasks.
        artifacts: The artifact store; None when there is none.
        virtual_time: The clock that callers may move; None for real time.
    """

    broker: Broker
    authenticator: Authenticator
    settings: NodeSettings
    now_ms: Callable[[], int]
    shares: CallerShares
    telemetry: RequestTelemetry
    cluster: ClusterServices
    polls: Polls
    targets: Targets
    feed: Feed
    artifacts: ArtifactStore | None = None
    virtual_time: VirtualTime | None = None
