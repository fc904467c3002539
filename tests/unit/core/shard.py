"""A view with its operations, and the operations with which most stories begin."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.decide import decide
from codeq_cluster.core.items import Delivery, Item, Sweep
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Advance, Claim, Operation, Submit
from codeq_cluster.core.outcomes import Advanced, Claimed, Created, Outcome
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Task
from tests.fakes.dict_view import DictView

NOW_MS = 1_000_000
LEASE_MS = 30_000
RULES = LifetimeRules()


class Shard:
    """A view that decides one operation after another."""

    def __init__(self, rules: LifetimeRules = RULES) -> None:
        self.view = DictView(now_ms=NOW_MS)
        self.rules = rules

    def ask(self, operation: Operation) -> Outcome:
        """Decide, apply the changes, and return the outcome."""
        decision = decide(self.view, operation, self.rules)
        self.view.advance(decision.changes)
        return decision.outcome

    def create(self, task_id: str = "t", **fields: object) -> None:
        """Create a task."""
        created = self.ask(create(task_id, **fields))
        assert Created(self.task(task_id)) == created

    def claim(self, **fields: object) -> list[str]:
        """Claim as `ann` and return the ids."""
        outcome = self.ask(claim(**fields))
        assert isinstance(outcome, Claimed)
        return [task.id for task in outcome.tasks]

    def wait(self, span_ms: int) -> int:
        """Let time pass and act; return the number of tasks it acted on."""
        self.view.now_ms += span_ms
        outcome = self.ask(Advance(count=100))
        assert isinstance(outcome, Advanced)
        return outcome.count

    def task(self, task_id: str = "t") -> Task:
        """Return a task that exists."""
        task = self.view.task(task_id)
        assert task is not None
        return task

    def items(self, kind: ItemKind) -> list[Item]:
        """Return the items of a kind, by tenant and id."""
        return [item for (each, *_), item in sorted(self.view.items.items()) if each is kind]

    def delivery(self, delivery_id: str = "t.1") -> Delivery:
        """Return a delivery that exists."""
        found = self.view.item(ItemKind.DELIVERY, "acme", delivery_id)
        assert isinstance(found, Delivery)
        return found

    def swept(self) -> list[tuple[str, str]]:
        """Return task and upload of the artifact sets that are to be deleted."""
        return [
            (item.task_id, item.upload)
            for item in self.items(ItemKind.SWEEP)
            if isinstance(item, Sweep)
        ]


def create(task_id: str = "t", **fields: object) -> Create:
    """Return a create of a small task."""
    made = Create(id=task_id, tenant="acme", command="render", payload="{}")
    return replace(made, **fields)


def claim(**fields: object) -> Claim:
    """Return a claim of one task of `render` by `ann`."""
    made = Claim(
        request="claim-1",
        tenant="acme",
        worker="ann",
        commands=("render",),
        count=1,
        lease_ms=LEASE_MS,
    )
    return replace(made, **fields)


def submit(**fields: object) -> Submit:
    """Return a result of `t` by `ann`."""
    made = Submit(
        request="submit-1", id="t", tenant="acme", worker="ann", status="COMPLETED", body="{}"
    )
    return replace(made, **fields)
