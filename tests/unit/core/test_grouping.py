"""Grouping: counts stay true over repeated messages, members of other shards, and walks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.decide import decide
from codeq_cluster.core.groups import (
    CANCELLED_MAX,
    DAY_MS,
    DELETED_MAX,
    GROUPS_MAX,
    KEPT_MS,
    MEMBERS_MAX,
    NOT_SEALED,
    AddMembers,
    CancelGroup,
    CreateGroup,
    Group,
    Member,
    MemberEnded,
    NewMember,
    SealGroup,
    group_shard,
    member_id,
    status_of,
)
from codeq_cluster.core.lane import lane_of
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Advance, Cancel, Claim, Finish, Operation, Submit
from codeq_cluster.core.outcomes import Claimed, GroupStands, Outcome, Rejected, Rejection
from codeq_cluster.core.relays import Effect, Relay, Relayed, RelayedCancel, RelayedTask, TakeRelays
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of, shard_of_key, shard_of_lane, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import GROUPS, Tally
from codeq_cluster.core.task import FollowUp, GroupCounts, Membership, More, State, Task
from tests.fakes.dict_view import DictView

SHARDS = 2
RULES = LifetimeRules(shards=SHARDS)
G = {"tenant": "acme", "id": "g"}
HOME = group_shard("acme", "g", SHARDS)
TASK = Create(command="render", payload="1", max_attempts=1)
THEN = Create(command="report", payload="{}")
AWAY_KEY = next(key for key in map(str, range(99)) if shard_of_key("acme", key, SHARDS) != HOME)
AWAY_LANE = next(
    key for key in map(str, range(99)) if shard_of_lane("acme", "render", key, SHARDS) != HOME
)
AWAY = replace(TASK, idempotency_key=AWAY_KEY, fingerprint="f")
HERE_KEY = next(key for key in map(str, range(99)) if shard_of_key("acme", key, SHARDS) == HOME)
NEIGHBOUR = next(f"h{n}" for n in range(99) if group_shard("acme", f"h{n}", SHARDS) == HOME)


class Cluster:
    """Two shards whose relays arrive when a test says so."""

    def __init__(self) -> None:
        self.views = [DictView(now_ms=1_000_000) for _ in range(SHARDS)]
        self.sent: set[tuple[int, int]] = set()

    @property
    def home(self) -> DictView:
        """The shard of the group."""
        return self.views[HOME]

    @property
    def away(self) -> DictView:
        """The other one."""
        return self.views[1 - HOME]

    @property
    def group(self) -> Group:
        """The group."""
        found = self.home.items[ItemKind.GROUP, "acme", "g"]
        assert isinstance(found, Group)
        return found

    def ask(self, operation: Operation, view: DictView | None = None) -> Outcome:
        """Decide an operation, on the group's shard if none is named."""
        view = view or self.home
        decision = decide(view, operation, RULES)
        view.advance(decision.changes)
        return decision.outcome

    def stands(self, operation: Operation) -> GroupStands:
        """Decide an operation on the group that is not refused."""
        outcome = self.ask(operation)
        assert isinstance(outcome, GroupStands)
        return outcome

    def pass_ms(self, passed_ms: int) -> None:
        """Let time pass, and all that is due happen."""
        for view in self.views:
            view.now_ms += passed_ms
            while view.lapsed(1) or view.due(1, leases_too=True):
                self.ask(Advance(count=1000), view)

    def deliver(self) -> None:
        """Send every relay that was not sent, in order, until there are none."""
        while waiting := [
            (origin, item)
            for origin, view in enumerate(self.views)
            for item in view.items.values()
            if isinstance(item, Relay) and (origin, item.number) not in self.sent
        ]:
            origin, first = min(waiting, key=lambda each: each[1].number)
            self.sent.add((origin, first.number))
            self.take(origin, first.number, first.effect)

    def take(self, origin: int, number: int, effect: Effect) -> None:
        """Let the other shard take one relay, whatever it has taken before."""
        relays = (Relayed(number, effect),)
        self.ask(TakeRelays(origin=origin, after=0, relays=relays), self.views[1 - origin])

    def claim(self, view: DictView | None = None, command: str = "render") -> Task:
        """Claim a task."""
        claim = Claim(
            request=f"c{len(self.sent)}",
            tenant="acme",
            worker="ann",
            commands=(command,),
            count=1,
            lease_ms=60_000,
        )
        outcome = self.ask(claim, view)
        assert isinstance(outcome, Claimed)
        [task] = outcome.tasks
        return task

    def reports(self) -> list[GroupCounts]:
        """Return the counts of every completion task."""
        return [
            task.more.completes
            for task in self.home.tasks.values()
            if task.more is not None and task.more.completes is not None
        ]


def done(task: Task) -> Submit:
    return Submit(
        request="s", id=task.id, tenant="acme", worker="ann", status="COMPLETED", body="1"
    )


def begun(*tasks: Create, seal: bool = True) -> CreateGroup:
    return CreateGroup(**G, digest="", then=THEN, tasks=tasks, seal=seal)


@pytest.mark.parametrize("key", ["a", "b", "c", "d"])
def test_the_completion_task_is_on_the_shard_of_its_key(key: str) -> None:
    """Another one has no place of its key, and so its limit would not hold."""
    cluster = Cluster()
    cluster.ask(replace(begun(), then=replace(THEN, key=key)))
    cluster.deliver()
    home = shard_of_lane("acme", THEN.command, key, len(cluster.views))
    then_id = cluster.group.then_id

    assert home == shard_of(then_id, len(cluster.views))
    assert key == lane_of(cluster.views[home].tasks[then_id])


def test_an_end_that_is_told_twice_counts_once() -> None:
    """A restored shard may send it under a new number, because it does not know what has acted."""
    cluster = Cluster()
    cluster.ask(begun(AWAY, TASK))
    cluster.deliver()
    cluster.ask(done(cluster.claim(cluster.away)), cluster.away)
    cluster.deliver()
    [end] = [
        item.effect
        for item in cluster.away.items.values()
        if isinstance(item, Relay) and isinstance(item.effect, MemberEnded)
    ]
    cluster.take(1 - HOME, 10**6, end)

    assert (1, 1, 0) == (cluster.group.live, cluster.group.completed, cluster.group.ended_ms)
    assert [] == cluster.reports()


def test_the_end_of_a_member_of_an_earlier_group_counts_for_none() -> None:
    """A new group of an old name has another generation."""
    cluster = Cluster()
    cluster.ask(begun(TASK))
    member = next(iter(cluster.home.tasks.values())).more
    assert member is not None
    assert member.member is not None
    older = replace(member.member, generation=member.member.generation - 1)
    end = MemberEnded(
        tenant="acme", member=older, task_id=older.name, status="COMPLETED", ended_ms=1
    )
    cluster.take(1 - HOME, 1, end)

    assert 1 == cluster.group.live


def test_a_member_of_another_shard_adds_to_its_sealed_group() -> None:
    """What it adds arrives before its end: the group waits for it."""
    cluster = Cluster()
    cluster.ask(begun(AWAY))
    cluster.deliver()
    member = cluster.claim(cluster.away)
    finish = Finish(submit=done(member), next=(TASK,), digest="d", shards=SHARDS, groups=("g",))
    cluster.ask(finish, cluster.away)
    cluster.deliver()

    assert (2, 1, 1) == (cluster.group.total, cluster.group.live, cluster.group.completed)
    last = cluster.claim()
    assert last.more is not None
    assert member.id == last.more.parent_id
    cluster.ask(done(last))
    assert [2] == [each.completed for each in cluster.reports()]


def test_what_a_member_adds_to_a_cancelled_group_never_begins() -> None:
    """The walk has passed; it counts as cancelled, and there is no task."""
    cluster = Cluster()
    cluster.ask(begun(AWAY))
    cluster.deliver()
    member = cluster.claim(cluster.away)
    cluster.ask(CancelGroup(**G))
    cluster.pass_ms(1)
    finish = Finish(submit=done(member), next=(TASK,), digest="d", shards=SHARDS, groups=("g",))
    cluster.ask(finish, cluster.away)
    cluster.deliver()

    assert [] == [task for task in cluster.home.tasks.values() if task.command == "render"]
    [report] = cluster.reports()
    assert (2, 1, 1) == (report.total, report.completed, report.cancelled)


def test_a_follow_up_whose_group_is_gone_is_a_task_by_itself() -> None:
    """Its cause is done, so it is made all the same."""
    cluster = Cluster()
    cluster.ask(begun(AWAY))
    cluster.deliver()
    member = cluster.claim(cluster.away)
    assert member.more is not None
    assert member.more.member is not None
    for name, item in [*cluster.home.items.items()]:
        if isinstance(item, Group | Member):
            del cluster.home.items[name]
    create = replace(TASK, id="0001", tenant="acme")
    number = next(each for each in range(99) if shard_of(f"{each:04x}", SHARDS) == HOME)
    effect = NewMember(
        create=replace(create, id=f"{number:04x}"),
        parent=member.more.member,
        parent_id=member.id,
        root_id=member.id,
    )
    cluster.take(1 - HOME, 10**6, effect)

    [task] = cluster.home.tasks.values()
    assert task.more is not None
    assert (member.id, None) == (task.more.parent_id, task.more.member)


def test_a_group_whose_member_is_not_made_does_not_wait_for_it() -> None:
    """Its key is another task's, on another shard or on this one."""
    cluster = Cluster()
    for view, key in ((cluster.away, AWAY_KEY), (cluster.home, HERE_KEY)):
        cluster.ask(replace(AWAY, id=f"t{key}", tenant="acme", idempotency_key=key), view)
    cluster.ask(begun(AWAY, replace(AWAY, idempotency_key=HERE_KEY)))
    before = cluster.group
    cluster.deliver()

    assert (1, 0) == (before.live, before.ended_ms)
    assert [0] == [each.total for each in cluster.reports()]
    assert 2 == cluster.group.rows


def with_key(number: int, group: str = "", *, generation: int = 0) -> RelayedTask | NewMember:
    """Return a task of one key as another shard relays it: of a group, or by itself."""
    task_id = with_shard(f"{number:032x}", shards=SHARDS, wanted=HOME)
    create = replace(AWAY, id=task_id, tenant="acme", idempotency_key=HERE_KEY)
    if not group:
        return RelayedTask(create, More(parent_id="p", root_id="p"))
    parent = Membership(group=group, generation=generation, name="p")
    return NewMember(create=create, parent=parent, parent_id="p", root_id="p")


@pytest.mark.parametrize("second", ["g", NEIGHBOUR, "gone", ""])
@pytest.mark.parametrize("first", ["g", "gone", ""])
def test_a_key_makes_one_task_of_what_arrives_together(first: str, second: str) -> None:
    """Members of one group, of two, of one that is gone, and tasks by themselves."""
    cluster = Cluster()
    of = {"": 0, "gone": 1}
    for group in ("g", NEIGHBOUR):
        of[group] = cluster.stands(replace(begun(seal=False), id=group)).group.generation
    effects = [
        with_key(number, group, generation=of[group])
        for number, group in enumerate((first, second))
    ]
    batch = tuple(Relayed(number, effect) for number, effect in enumerate(effects, 1))
    cluster.ask(TakeRelays(origin=1 - HOME, after=0, relays=batch))

    assert [effects[0].create.id] == list(cluster.home.tasks)


def test_a_key_is_free_again_after_a_cancel_that_arrives_with_its_task() -> None:
    """That task never begins, so what comes behind it has the key."""
    cluster = Cluster()
    first, second = with_key(1), with_key(2)
    cancel = RelayedCancel("acme", first.create.id, "r")
    batch = tuple(Relayed(n, effect) for n, effect in enumerate((first, cancel, second), 1))
    cluster.ask(TakeRelays(origin=1 - HOME, after=0, relays=batch))

    assert [second.create.id] == list(cluster.home.tasks)


def test_a_cancel_that_overtakes_its_member_ends_it() -> None:
    """Both arrive together: the task never begins, and the group hears of an end."""
    cluster = Cluster()
    cluster.ask(begun(AWAY))
    cluster.ask(CancelGroup(**G))
    cluster.pass_ms(1)
    relays = sorted(
        (item for item in cluster.home.items.values() if isinstance(item, Relay)),
        key=lambda item: item.number,
    )
    assert isinstance(relays[0].effect, RelayedTask)
    cluster.sent |= {(HOME, each.number) for each in relays}
    batch = tuple(Relayed(each.number, each.effect) for each in relays)
    cluster.ask(TakeRelays(origin=HOME, after=0, relays=batch), cluster.away)
    cluster.deliver()

    assert {} == cluster.away.tasks
    assert [1] == [each.cancelled for each in cluster.reports()]


def test_a_cancelled_member_of_another_shard_is_counted() -> None:
    """Its shard cancels it, and tells the group."""
    cluster = Cluster()
    cluster.ask(begun(AWAY, TASK))
    cluster.deliver()
    cluster.ask(CancelGroup(**G))
    cluster.pass_ms(1)
    cluster.deliver()

    assert [2] == [each.cancelled for each in cluster.reports()]
    assert State.FAILED is next(iter(cluster.away.tasks.values())).state


def test_a_walk_cancels_all_members_in_steps() -> None:
    """One entry has at most so many ends."""
    cluster = Cluster()
    many = 2 * CANCELLED_MAX + 1
    cluster.ask(begun(*(TASK,) * many, seal=False))
    cluster.ask(CancelGroup(**G))
    steps = []
    while not cluster.group.ended_ms:
        before = cluster.group.cancelled
        cluster.ask(Advance(count=1000))
        steps.append(cluster.group.cancelled - before)

    assert [CANCELLED_MAX, CANCELLED_MAX, 1] == steps
    assert [many] == [each.cancelled for each in cluster.reports()]


def test_a_walk_cancels_fewer_members_if_so_many_do_not_fit_an_entry() -> None:
    """The next entry is smaller then, down to one change."""
    cluster = Cluster()
    cluster.ask(begun(TASK, TASK, TASK, seal=False))
    cluster.ask(CancelGroup(**G))
    steps = []
    while not cluster.group.ended_ms:
        before = cluster.group.cancelled
        cluster.ask(Advance(count=1))
        steps.append(cluster.group.cancelled - before)

    assert [1, 1, 1] == steps


@pytest.mark.parametrize("lane", ["", AWAY_LANE])
def test_a_new_member_is_answered_wherever_its_shard_is(lane: str) -> None:
    """As it begins: before its relay arrives, and to a request that is sent again after its end."""
    cluster = Cluster()
    cluster.ask(begun(seal=False))
    add = AddMembers(**G, name="more", tasks=(replace(TASK, key=lane),))
    first = cluster.stands(add)
    for view in cluster.views:
        view.tasks.clear()
    again = cluster.stands(add)

    assert (State.READY,) == tuple(task.state for task in first.tasks)
    assert first.names == tuple(FollowUp(task.id) for task in first.tasks)
    assert first.names == again.names == tuple(FollowUp(task.id) for task in again.tasks)
    [task] = again.tasks
    assert task.more is not None
    assert Membership(group="g", generation=cluster.group.generation, name=task.id) == (
        task.more.member
    )


def test_a_member_whose_key_another_shard_may_know_is_not_answered_as_a_task() -> None:
    """That shard decides whether there is a new task."""
    cluster = Cluster()
    stands = cluster.stands(begun(AWAY, TASK))

    assert [1, 2] == [len(stands.tasks), len(stands.names)]


def test_a_group_that_nobody_seals_fails_without_a_completion_task() -> None:
    """Members that end later are still counted."""
    cluster = Cluster()
    cluster.ask(begun(TASK, seal=False))
    task = cluster.claim()
    cluster.home.now_ms += DAY_MS
    cluster.ask(done(task))
    cluster.pass_ms(0)

    assert (NOT_SEALED, "FAILED", 1) == (
        cluster.group.reason,
        status_of(cluster.group),
        cluster.group.completed,
    )
    assert [] == cluster.reports()
    assert Rejected(Rejection.GROUP_SEALED) == cluster.ask(
        AddMembers(**G, name="late", tasks=(TASK,))
    )


def test_members_outlive_their_retention_until_the_group_has_ended() -> None:
    """From its end on they are kept for it once more, and seven days after their own at most."""
    cluster = Cluster()
    ask = begun(TASK, TASK, seal=False)
    cluster.ask(replace(ask, seal_within_ms=30 * DAY_MS))
    first = cluster.claim()
    cluster.ask(done(first))
    cluster.pass_ms(2 * RULES.retention_ms)
    assert first.id in cluster.home.tasks
    cluster.ask(SealGroup(**G))
    cluster.ask(Cancel(request="x", id=next(iter(_others(cluster, first))), tenant="acme"))
    cluster.pass_ms(RULES.retention_ms // 2)
    assert first.id in cluster.home.tasks
    cluster.pass_ms(RULES.retention_ms)

    assert first.id not in cluster.home.tasks
    assert cluster.group.ended_ms


def test_members_are_not_kept_for_ever() -> None:
    """A group may be open for a month."""
    cluster = Cluster()
    cluster.ask(replace(begun(TASK, TASK, seal=False), seal_within_ms=30 * DAY_MS))
    first = cluster.claim()
    cluster.ask(done(first))
    cluster.pass_ms(KEPT_MS - 1)
    assert first.id in cluster.home.tasks
    cluster.pass_ms(1)

    assert first.id not in cluster.home.tasks
    assert not cluster.group.ended_ms


def test_an_ended_group_is_deleted_with_its_rows_in_steps() -> None:
    """After seven days; then its name is free, and its tally is gone."""
    cluster = Cluster()
    cluster.ask(begun(*(TASK,) * (DELETED_MAX + 1)))
    cluster.ask(CancelGroup(**G))
    cluster.pass_ms(1)
    cluster.home.now_ms += KEPT_MS
    decision = decide(cluster.home, Advance(count=1), RULES)
    while cluster.home.lapsed(1):
        cluster.ask(Advance(count=1000))

    assert len(decision.changes) <= DELETED_MAX + 1
    kinds = {kind for kind, _, _ in cluster.home.items}
    assert not kinds & {ItemKind.GROUP, ItemKind.MEMBER, ItemKind.TALLY}
    assert cluster.stands(begun(TASK)).made


def test_bounds_hold() -> None:
    """A tenant has so many open groups, and a group so many members."""
    cluster = Cluster()
    tally = Tally(tenant="acme", id=GROUPS, count=GROUPS_MAX)
    cluster.home.items[ItemKind.TALLY, "acme", tally.id] = tally
    assert Rejected(Rejection.TOO_MANY, "groups") == cluster.ask(begun())
    del cluster.home.items[ItemKind.TALLY, "acme", tally.id]
    cluster.ask(begun(TASK, seal=False))
    full = replace(cluster.group, rows=MEMBERS_MAX)
    cluster.home.items[ItemKind.GROUP, "acme", "g"] = full
    more = AddMembers(**G, name="more", tasks=(TASK,))

    assert Rejected(Rejection.TOO_MANY, "members") == cluster.ask(more)


def test_members_of_groups_with_like_names_are_apart() -> None:
    """A name may begin with another one."""
    cluster = Cluster()
    cluster.ask(begun(TASK))
    row = Member(tenant="acme", id=member_id("g.h", "x"), task_id="x")
    cluster.home.items[ItemKind.MEMBER, "acme", row.id] = row

    assert ["g"] == [each.group for each in cluster.home.members("acme", "g", after="")]


def _others(cluster: Cluster, task: Task) -> list[str]:
    return [each for each in cluster.home.tasks if each != task.id]
