"""Follow-ups: an accepted result has exactly the tasks it makes, and no other result any (G25)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import F, Follow
from jepsen_lite.operations import History, Op, TaskOps


def made_with_results(history: History) -> Verdict:
    """G25: what a result makes is there once if the result was accepted, and else not at all.

    The read of a task at rest decides which result was accepted, also when its answer was lost. A
    follow-up is found at rest under the id that this read shows, or by its key: to create it again
    finds it. What was made by a result names that result's task.
    """
    judge = _Judge(history)
    found = [violation for task in history.tasks.values() for violation in judge.of(task)]
    note = f"{judge.open} follow-ups were not looked for at the end" if judge.open else ""
    checked = 0 if judge.open else judge.checked
    return judged("G25", found, checked=checked, note=note)


class _Judge:
    """Looks at one task after the other.

    Attributes:
        checked: The follow-ups that were judged.
        open: The follow-ups of accepted results that nobody looked for.
    """

    def __init__(self, history: History) -> None:
        self.checked = 0
        self.open = 0
        self._tasks = history.tasks
        self._shown = _shown(history.tasks)
        # The tasks found by their keys at rest.
        self._by_key: dict[str, set[str]] = defaultdict(set)
        for op in history.by_f[F.CREATE]:
            if op.ok and op.args.final:
                self._by_key[op.args.idempotency_key].add(op.out.task)
        # Who may have made a task: the payload of each follow-up, with the parents it may have.
        self._parents: dict[str, set[str]] = defaultdict(set)
        for task in history.tasks.values():
            for op in task.results:
                if _stands(task, op) is not False:
                    for each in op.args.next:
                        self._parents[each.content].add(task.id)

    def of(self, task: TaskOps) -> Iterator[Violation]:
        """Yield the violations that a task's results show."""
        for op in task.results:
            if not op.args.next:
                continue
            stands = _stands(task, op)
            if stands is False:
                yield from self._uncalled_for(task, op)
            elif stands:
                yield from self._lacking(task, op)

    def _uncalled_for(self, task: TaskOps, op: Op) -> Iterator[Violation]:
        """Yield what a result that was not accepted has made."""
        for each in op.args.next:
            self.checked += 1
            made = self._shown.get(each.content)
            if made and not self._parents[each.content]:
                yield _violation(task, op, f"made {_first(made)} and was not accepted")

    def _lacking(self, task: TaskOps, op: Op) -> Iterator[Violation]:
        """Yield what is wrong with the follow-ups of an accepted result."""
        assert task.final is not None
        names = task.final.out.next
        if op.ok and op.out.next != names:
            yield _violation(task, op, f"was answered {op.out.next}, and at rest it is {names}")
        if [each.key for each in op.args.next] != [each.key for each in names]:
            yield _violation(task, op, f"asked for {len(op.args.next)} tasks, and has {names}")
            return
        for asked, named in zip(op.args.next, names, strict=True):
            yield from self._wrong(task, op, asked, named)

    def _wrong(self, task: TaskOps, op: Op, asked: Follow, named: Follow) -> Iterator[Violation]:
        shown = self._shown.get(asked.content, set())
        ids = self._by_key[named.key] if named.key else {named.task}
        reads = [self._tasks[each].final if each in self._tasks else None for each in ids]
        finals = [read for read in reads if read is not None]
        if not finals:
            self.open += 1
            return
        self.checked += 1
        if len(shown | ids) > 1:
            text = f"made one task twice: {', '.join(sorted(shown | ids))}"
            yield _violation(task, op, text)
        for read in finals:
            name = asked.key or read.args.task
            if read.out.absent:
                yield _violation(task, op, f"was accepted, and {name} is not there")
            elif read.out.payload != asked.content:
                yield _violation(task, op, f"made {name} with another payload")
            elif read.out.parent not in self._parents[asked.content]:
                yield _violation(task, op, f"was accepted, and {name} was not made by it")


def _stands(task: TaskOps, op: Op) -> bool | None:
    """Return whether a result is the stored one; None if nobody can tell."""
    if task.final is not None:
        said = (task.final.out.status, task.final.out.content)
        return said == (op.args.status, op.args.content)
    same = [each for each in task.results if each.args.content == op.args.content]
    return None if any(each.possible for each in same) else False


def _shown(tasks: Mapping[str, TaskOps]) -> dict[str, set[str]]:
    """Return the tasks that were seen with each payload."""
    found: dict[str, set[str]] = defaultdict(set)
    for task in tasks.values():
        for op in task.claims:
            found[op.out.content].add(task.id)
        for op in task.reads:
            if op.out.payload:
                found[op.out.payload].add(task.id)
    return found


def _violation(task: TaskOps, op: Op, text: str) -> Violation:
    final = task.final.events if task.final is not None else ()
    return Violation(
        text=f"the result of {task.id} under token {op.args.token} {text}",
        events=(*op.events, *final),
        task=task.id,
    )


def _first(tasks: set[str]) -> str:
    return min(tasks)
