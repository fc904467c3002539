"""Steps: what is recorded stays (G37), and signals and waits have their causes (G38)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.history import F, Stepped
from jepsen_lite.operations import History, Op


def recorded_once(history: History) -> Verdict:
    """G37: an answered step is in every later delivery, and its name has one value for ever."""
    if not _final(history):
        return unknown("G37", "nobody read the steps of orders at the end")
    judge = _Judge(history)
    return judged("G37", [*judge.values(), *judge.kept()], checked=judge.checked)


def woken_by_cause(history: History) -> Verdict:
    """G38: each signal is read by one wait or kept; a wait ends by its signal or at its instant."""
    if not _final(history):
        return unknown("G38", "nobody read the signals to orders at the end")
    judge = _Judge(history)
    return judged("G38", [*judge.waits(), *judge.signals()], checked=judge.checked)


class _Judge:
    """Looks at the orders of a history.

    Attributes:
        checked: What was judged.
    """

    def __init__(self, history: History) -> None:
        self.checked = 0
        self._begins = [op for op in history.by_f[F.BEGIN] if op.ok and op.out.task]
        self._records = history.by_f[F.RECORD]
        self._parks = history.by_f[F.PARK]
        self._signals = history.by_f[F.SIGNAL]
        self._final = _final(history)

    def values(self) -> Iterator[Violation]:
        """Yield names with a second value, and values that nobody may have recorded."""
        sent = {
            (op.args.task, op.args.name, op.args.content) for op in self._records if op.possible
        }
        first: dict[tuple[str, str], tuple[Stepped, Op]] = {}
        for task, step, op in self._shown():
            if step.until_ms:
                continue
            self.checked += 1
            if (task, step.name, step.content) not in sent:
                text = f"{task} has step {step.name} with {step.content}, which nobody recorded"
                yield Violation(text=text, events=op.events, task=task)
            known, before = first.setdefault((task, step.name), (step, op))
            if known.content != step.content:
                text = f"{task} has step {step.name} with {known.content} and {step.content}"
                yield Violation(text=text, events=(*before.events, *op.events), task=task)

    def kept(self) -> Iterator[Violation]:
        """Yield deliveries and reads that lack what was answered before they began."""
        later: dict[str, list[Op]] = defaultdict(list)
        for op in self._begins:
            later[op.out.task].append(op)
        for op in self._final.values():
            later[op.args.task].append(op)
        for said in (*self._records, *self._parks):
            if not said.ok:
                continue
            for op in later[said.args.task]:
                if said.ret_ns < op.call_ns:
                    self.checked += 1
                    if said.args.name not in {step.name for step in op.out.steps}:
                        text = f"{said.args.task} was handed out without step {said.args.name}"
                        events = (*said.events, *op.events)
                        yield Violation(text=text, events=events, task=said.args.task)

    def waits(self) -> Iterator[Violation]:
        """Yield waits that are open in a delivery, or over for no reason."""
        for op in self._begins:
            for step in op.out.steps:
                if step.open:
                    text = f"{op.out.task} was handed out while it waited at {step.name}"
                    yield Violation(text=text, events=op.events, task=op.out.task)
        sent = {
            (op.args.task, op.args.name, op.args.content) for op in self._signals if op.possible
        }
        ended: dict[tuple[str, str], tuple[Stepped, Op]] = {}
        for task, step, op in self._shown():
            if not step.until_ms or step.open:
                continue
            self.checked += 1
            if step.content and (task, step.signal, step.content) not in sent:
                text = f"{task} was woken at {step.name} by {step.content}, which nobody sent"
                yield Violation(text=text, events=op.events, task=task)
            if not step.content and step.at_ms < step.until_ms:
                early_ms = step.until_ms - step.at_ms
                text = f"{task} waited {early_ms} ms too short at {step.name}"
                yield Violation(text=text, events=op.events, task=task)
            known, before = ended.setdefault((task, step.name), (step, op))
            if known != step:
                text = f"the wait {step.name} of {task} has ended twice"
                yield Violation(text=text, events=(*before.events, *op.events), task=task)

    def signals(self) -> Iterator[Violation]:
        """Yield signals that are lost, read twice or there although they were refused."""
        for task, op in self._final.items():
            there = [step.content for step in op.out.steps if step.until_ms and step.content]
            there += [each.content for each in op.out.signals if not each.read]
            for content, number in Counter(there).items():
                if number > 1:
                    text = f"{task} has the signal {content} {number} times"
                    yield Violation(text=text, events=op.events, task=task)
        for said in self._signals:
            final = self._final.get(said.args.task)
            if final is None or not said.ok:
                continue
            self.checked += 1
            kept = {each.content for each in final.out.signals if not each.read}
            read = {step.content for step in final.out.steps if step.until_ms}
            if said.args.content not in kept | read:
                text = f"{said.args.task} has lost the signal {said.args.content}"
                events = (*said.events, *final.events)
                yield Violation(text=text, events=events, task=said.args.task)

    def _shown(self) -> Iterator[tuple[str, Stepped, Op]]:
        for op in (*self._begins, *self._records, *self._parks, *self._final.values()):
            if op.ok:
                for step in op.out.steps:
                    yield op.out.task or op.args.task, step, op


def _final(history: History) -> dict[str, Op]:
    """Return the last look at each order."""
    return {op.args.task: op for op in history.by_f[F.STEPS] if op.ok and op.args.final}
