"""Turn order: the next queue is the one that a walk over all queues would choose."""

from __future__ import annotations

import tracemalloc
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from codeq_cluster.core import fairness
from codeq_cluster.core.fairness import WEIGHT_MAX, Turns
from codeq_cluster.core.turn_order import TurnOrder

QUEUES = [f"q{number}" for number in range(12)]

queues = st.sampled_from(QUEUES)
priorities = st.integers(0, 9)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrives"), queues, priorities),
        st.tuples(st.just("falls"), queues, priorities),
        st.tuples(st.just("empties"), queues, st.just(0)),
        st.tuples(st.just("closes"), queues, st.just(0)),
        st.tuples(st.just("opens"), queues, st.just(0)),
        st.tuples(st.just("is served out of turn"), queues, st.sampled_from([1, 2, 7, WEIGHT_MAX])),
        st.tuples(st.just("serve"), queues, st.sampled_from([1, 1, 2, 3, WEIGHT_MAX])),
        st.tuples(st.just("serve"), queues, st.sampled_from([1, 1, 2, 3, WEIGHT_MAX])),
    ),
    max_size=120,
)


class Table:
    """Queues in a dictionary; the walk over them is the reference."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.busy: dict[str, int] = {}
        self.closed: set[str] = set()
        self.order = TurnOrder(self.turns, self.busy.keys(), self.busy.get)

    def walk(self) -> str | None:
        """Return the queue to serve: by priority, then by turn, then by name."""
        return min(
            (queue for queue in self.busy if queue not in self.closed),
            key=lambda queue: (-self.busy[queue], self.turns.paid(queue), queue),
            default=None,
        )

    def look(self, queue: str) -> int | None:
        """Return the priority at which a queue has a task to give."""
        if queue in self.closed:
            self.order.park(queue)
            return None
        return self.order.priority(queue)

    def step(self, what: str, queue: str, number: int) -> None:
        """Change something; report only what brings a queue forward."""
        match what:
            case "arrives":
                self.busy[queue] = max(number, self.busy.get(queue, 0))
                if queue not in self.order.parked:
                    self.order.put(queue, number)
            case "falls":
                self.busy.update(dict.fromkeys(self._lower(queue, number), number))
            case "empties":
                self.busy.pop(queue, None)
                self.order.parked.discard(queue)
            case "closes":
                self.closed.add(queue)
            case "opens":
                self._open(queue)
            case "is served out of turn":
                self.turns.served(queue, weight=number)
            case "serve":
                first = self.order.first(self.look)

                assert first == self.walk()
                if first is not None:
                    self.turns.served(first, weight=number)

    def _lower(self, queue: str, number: int) -> list[str]:
        return [queue] if number < self.busy.get(queue, -1) else []

    def _open(self, queue: str) -> None:
        self.closed.discard(queue)
        if queue in self.order.parked:
            self.order.parked.discard(queue)
            self.order.put(queue, self.busy[queue])


@given(steps=steps, remembered=st.sampled_from([1, 4, 100]))
@settings(max_examples=400, deadline=None)
def test_the_next_queue_is_the_one_a_walk_would_choose(
    steps: list[tuple[str, str, int]], remembered: int
) -> None:
    """Queues arrive, leave, close, are served elsewhere and restart at any time."""
    with patch.object(fairness, "QUEUES_MAX", remembered):
        table = Table()
        for step in steps:
            table.step(*step)

        assert table.order.first(table.look) == table.walk()


def test_a_serve_looks_at_few_of_many_queues() -> None:
    """A serve checks three queues on average, including the served one, whatever the weights."""
    table = Table()
    count = 3000
    for number in range(count):
        table.step("arrives", f"queue-{number:04}", number % 2)
    looks = 0

    def look(queue: str) -> int | None:
        nonlocal looks
        looks += 1
        return table.look(queue)

    for number in range(3 * count):
        first = table.order.first(look)
        assert first is not None
        table.turns.served(first, weight=1 + number % 3)

    assert looks <= 3 * 3 * count


def test_queues_that_come_and_go_leave_nothing_behind() -> None:
    """New queue names whose turn never comes leave nothing behind."""
    table = Table()
    table.step("arrives", "first", 9)
    tracemalloc.start()
    for number in range(20_000):
        table.step("arrives", f"q{number}", number % 9)
        table.step("empties", f"q{number}", 0)
        table.step("serve", "first", 1)
        if number == 1000:
            before = _held_bytes()
    after = _held_bytes()
    tracemalloc.stop()

    assert after - before < 10_000


def _held_bytes() -> int:
    """Return the memory that was taken here or by the package; other threads take some, too."""
    ours = (tracemalloc.Filter(True, name) for name in (__file__, "*/codeq_cluster/*"))
    return sum(each.size for each in tracemalloc.take_snapshot().filter_traces([*ours]).traces)
