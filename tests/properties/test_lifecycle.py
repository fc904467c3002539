"""The core against the model, and the bytes against the core, over random histories."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core.operations import Claim
from tests.properties.outbox_rules import OutboxJobs

from .lane_rules import Lanes
from .machine import indexes
from .operator_rules import Operators
from .relay_rules import FollowUps, Relays
from .rows import counters_in, write
from .schedule_rules import Scheduling
from .work_rules import Work

# A history that fails is made shorter for five minutes at most; then it is shown.
pytestmark = pytest.mark.timeout(600)


class Lifecycle(Work):
    """Tasks alone, so that histories go deep."""

    @precondition(lambda self: self.asked)
    @rule(index=indexes)
    def send_again(self, index: int) -> None:
        """Repeat an old request, which must be remembered and not performed again."""
        operation = self.asked[index % len(self.asked)]
        if isinstance(operation, Claim):
            operation = replace(operation, retry=True)
        self.ask(operation)

    @rule()
    def commit(self) -> None:
        """Make one write for all decisions since the last one."""
        write(self.batched_rows, mutations(self.batch, counters_in(self.batched_rows)))
        self.batch = []

        assert self.batched_rows == self.rows


class Following(FollowUps, Relays, Lifecycle):
    """Tasks, those that follow them and those that other shards relay."""


class Scheduled(Scheduling, Lifecycle, Operators):
    """Schedules with the tasks that they make, and every way in which these end."""


class Keys(Lanes, Lifecycle):
    """Tasks whose keys let them run one after the other."""


class Everything(Keys, Scheduling, Following, Operators, OutboxJobs):
    """Tasks and everything that is stored beside them."""


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=75, stateful_step_count=50, deadline=None)

TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestScheduled = Scheduled.TestCase
TestScheduled.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)

TestKeys = Keys.TestCase
TestKeys.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)

TestEverything = Everything.TestCase
TestEverything.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
