"""Lists by tag, against a model: for each tag, the set of tasks that have it."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.broker.engine.answers import browse_tags
from codeq_cluster.broker.questions import END, BrowseTags
from codeq_cluster.codec.keyspace import PLACE_OF, QueuePlace
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.codec.tag_keys import TAG_PREFIX
from codeq_cluster.core.decide import decide
from codeq_cluster.core.faults import task_fault
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged, CreateUnique
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Operation,
    Requeue,
    Submit,
)
from codeq_cluster.core.outcomes import Created, Outcome, Rejected, Rejection, Tagged
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.selecting import ALL_TASKS, TaskFilter
from codeq_cluster.core.tags import TAGS_MAX, ChangeTags, in_order
from codeq_cluster.core.task import Task
from codeq_cluster.core.unique import On, UniqueTerms
from tests.fakes.dict_view import DictView
from tests.fakes.memory_store import MemoryState

from .checks import check_arrows, check_changes
from .rows import counters_in, recomputed

RULES = LifetimeRules(retention_ms=100_000, dlq_retention_ms=100_000)
TENANTS = ("acme", "")
# Values that would be confused with each other if a key had them as they are.
VALUES = ("a", "b", "a/", "a:b", "größe", "a/" + "x" * 8 + "/t")
NAMES = ("user", "env", "user2")
Tags = dict[str, str]


class World:
    """Tasks of two tenants that get tags, live, and are deleted."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.view = DictView(now_ms=1_000_000)
        self.store = MemoryState()
        self.numbers = count()
        self.tags: dict[str, Tags] = {}

    def live(self, steps: int) -> None:
        """Do random things; lists are right after each of them."""
        random = self.random
        for _ in range(steps):
            match random.randrange(10):
                case 0 | 1 | 2:
                    self.create()
                case 3 | 4:
                    self.change()
                case 5 | 6:
                    self.work()
                case 7:
                    self.end_or_delete()
                case 8:
                    self.replace_unique()
                case _:
                    self.view.now_ms += random.choice([1, 1000, 60_000, 100_000])
                    self.ask(Advance(count=20))
            self.model_forgets()
            self.lists_are_right()

    def create(self) -> None:
        """Make a task, with tags or a key, or with neither."""
        tags, random = self.drawn(), self.random
        create = Create(
            id=self.name("t"),
            tenant=random.choice(TENANTS),
            command="Render",
            payload="1",
            max_attempts=2,
            delay_ms=random.choice([0, 0, 1000]),
            ttl_ms=random.choice([0, 0, 5000]),
            tags=in_order(tags),
            metadata=random.choice(["", '{"page":7}']),
        )
        operation: Operation = create
        if random.random() < 0.3:
            operation = CreateKeyed(replace(create, key="k"))
        elif create.tags or create.metadata:
            operation = CreateTagged(create)
        made = self.ask(operation)
        assert isinstance(made, Created)
        assert create.metadata == (made.task.more.metadata if made.task.more else "")
        self.tags[made.task.id] = tags

    def replace_unique(self) -> None:
        """Make a task with a unique key, or give the one that waits other tags."""
        tags = self.drawn()
        create = Create(
            id=self.name("u"),
            tenant="acme",
            command="render",
            payload="1",
            unique=UniqueTerms(key="one", on=On.REPLACE),
            tags=in_order(tags),
        )
        made = self.ask(CreateUnique(create))
        assert isinstance(made, Created)
        if made.unique in ("created", "replaced"):
            self.tags[made.task.id] = tags

    def change(self) -> None:
        """Set some tags of a task and remove others; asked twice, it is the same."""
        random, view = self.random, self.view
        task_id = random.choice([*view.tasks, "missing"])
        task = view.task(task_id)
        tenant = task.tenant if task is not None and random.random() < 0.9 else "other"
        remove = set(random.sample(NAMES, random.randrange(3)))
        put = {name: value for name, value in self.drawn().items() if name not in remove}
        if random.random() < 0.1:
            put = {f"n{number}": "x" for number in range(TAGS_MAX)}
        operation = ChangeTags(
            id=task_id, tenant=tenant, put=in_order(put), remove=tuple(sorted(remove))
        )
        answers = [self.ask(operation) for _ in range(2)]
        if task is None or tenant != task.tenant:
            assert [Rejected(Rejection.NOT_FOUND)] * 2 == answers
            return
        wanted = {
            name: each for name, each in self.tags[task_id].items() if name not in remove
        } | put
        if len(wanted) > TAGS_MAX:
            assert [Rejected(Rejection.TOO_MANY_TAGS, str(TAGS_MAX))] * 2 == answers
            return
        assert [Tagged(task_id, in_order(wanted))] * 2 == answers
        after = view.task(task_id)
        assert after is not None
        assert (task.state, task.updated_ms) == (after.state, after.updated_ms)
        self.tags[task_id] = wanted

    def work(self) -> None:
        """Claim some, and end or return them."""
        random = self.random
        claim = Claim(
            request=self.name("c"),
            tenant=random.choice(TENANTS),
            worker="ann",
            commands=(),
            count=2,
            lease_ms=1000,
        )
        for task in getattr(self.ask(claim), "tasks", ()):
            held: dict[str, Any] = {
                "request": self.name("r"),
                "id": task.id,
                "tenant": task.tenant,
                "worker": "ann",
            }
            done: dict[str, Any] = {"status": "COMPLETED", "body": "1"}
            ways = (Submit(**held, **done), Abandon(**held), Nack(**held, delay_ms=500), None)
            if (way := random.choice(ways)) is not None:
                self.ask(way)

    def end_or_delete(self) -> None:
        """Let an operator or a producer act on one task."""
        if not self.view.tasks:
            return
        task = self.random.choice(list(self.view.tasks.values()))
        bulk: dict[str, Any] = {"tenant": task.tenant, "ids": (task.id,), "by": "ops"}
        self.ask(
            self.random.choice(
                (
                    Cancel(request=self.name("x"), id=task.id, tenant=task.tenant),
                    Delete(request=self.name("d"), **bulk),
                    Requeue(request=self.name("q"), **bulk),
                )
            )
        )

    def model_forgets(self) -> None:
        """Drop the tasks that are deleted."""
        self.tags = {
            task_id: each for task_id, each in self.tags.items() if task_id in self.view.tasks
        }

    def lists_are_right(self) -> None:
        """Each list has exactly the tasks that the model knows, and no other row is there."""
        for tenant in TENANTS:
            for tag in self.all_tags():
                self.list_is_right(tenant, (tag,))
        rows = [key for key, _ in self.store.scan(TAG_PREFIX, TAG_PREFIX + b"\xff", 10**6)]
        assert sum(map(len, self.tags.values())) == len(rows)

    def list_is_right(
        self,
        tenant: str,
        tags: tuple[tuple[str, str], ...],
        only: TaskFilter = ALL_TASKS,
        places: tuple[QueuePlace, ...] = tuple(QueuePlace),
    ) -> None:
        """Walk a list in pages of random sizes."""
        wanted = [
            task
            for task in self.view.tasks.values()
            if task.tenant == tenant
            and set(tags) <= self.tags[task.id].items()
            and only.fits(task)
            and PLACE_OF[task.state] in places
        ]
        wanted.sort(key=lambda task: (-task.created_ms, task.id))
        found: list[Task] = []
        after = b""
        while after != END:
            asked = BrowseTags(
                tenant=tenant,
                tags=tags,
                queue=self.random.choice(["", "render"]),
                places=places,
                after=after,
                count=self.random.choice([1, 2, 50]),
                only=only,
            )
            page = browse_tags(self.store, asked, unreadable)
            assert len(page.rows) <= asked.count
            found += [task for _, task in page.rows]
            after = page.edge
        assert wanted == found

    def all_tags(self) -> list[tuple[str, str]]:
        """Return every tag that a task may have."""
        return [(name, value) for name in NAMES for value in VALUES] + [("n1", "x")]

    def drawn(self) -> Tags:
        """Return some tags."""
        names = self.random.sample(NAMES, self.random.choice([0, 1, 1, 2]))
        return {name: self.random.choice(VALUES) for name in names}

    def name(self, of: str) -> str:
        """Return a new name."""
        return f"{of}{next(self.numbers)}"

    def ask(self, operation: Operation) -> Outcome:
        """Decide, and write what that says, as a leader does."""
        view, store = self.view, self.store
        decision = decide(view, operation, RULES)
        check_changes(decision)
        check_arrows(operation, decision)
        written = mutations(decision.changes, counters_in(self.rows()))
        self.only_tags_touch_tags(operation, written)
        store.commit(written, index=store.applied_index + 1, digest=bytes(16), net=True)
        view.advance(decision.changes)
        assert not any(map(task_fault, view.tasks.values()))
        return decision.outcome

    def rows(self) -> dict[bytes, bytes]:
        """Return the whole state."""
        return dict(self.store.scan(b"", b"\xff", 10**6))

    def only_tags_touch_tags(
        self, operation: Operation, written: dict[bytes, bytes | None]
    ) -> None:
        """No claim, no result and no return writes a row of a tag."""
        if isinstance(operation, Claim | Submit | Abandon | Nack | Cancel | Requeue):
            assert not [key for key in written if key.startswith(TAG_PREFIX)]


def unreadable() -> None:
    """Every record can be read."""
    raise AssertionError


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_lists_have_exactly_the_tasks_with_their_tag(seed: int) -> None:
    """Whatever becomes of the tasks; and the store has the rows that follow from them."""
    world = World(seed)
    world.live(60)
    first = world.all_tags()[0]
    for only in (TaskFilter(created_from_ms=1_010_000), TaskFilter(created_before_ms=1_090_000)):
        world.list_is_right("acme", (first,), only)
        world.list_is_right("acme", (first, ("env", "a")), only, (QueuePlace.DONE, QueuePlace.DLQ))

    assert recomputed(world.view) == world.rows()
