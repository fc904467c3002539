"""Histories: a recorded history is read back unchanged, and an unreadable one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_lite.history import Args, Event, F, Out, Recorder, Type, dump, load
from jepsen_lite.operations import NEVER_NS, SECOND, History
from jepsen_lite.simulated import history
from jepsen_lite.story import Story


def test_a_recorded_history_is_read_back(tmp_path: Path) -> None:
    """Every event is read back as recorded, in order and with instants that never decrease."""
    path = tmp_path / "history.ndjson"
    with Recorder(path) as recorder:
        args = Args(content='{"key":"ä"}', command="work")
        recorder.record("p1", F.CREATE, Type.INVOKE, node="n1", args=args)
        recorder.record("p1", F.CREATE, Type.OK, node="n1", out=Out(task="a", http=202))
        recorded = list(recorder.events)

    assert recorded == load(path)
    assert [0, 1] == [event.i for event in recorded]
    assert recorded[0].t_ns <= recorded[1].t_ns


def test_a_history_survives_the_disk(tmp_path: Path) -> None:
    """A whole run written and read is the same run."""
    events = history(1, creates=30)
    dump(events, tmp_path / "history.ndjson")

    assert events == load(tmp_path / "history.ndjson")


@pytest.mark.parametrize("line", [b"{", b"{}", b'{"i":0,"t_ns":1,"p":"a","f":"dance","type":"ok"}'])
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: bytes) -> None:
    """The error names the file and the line."""
    path = tmp_path / "history.ndjson"
    path.write_bytes(line + b"\n")

    with pytest.raises(ValueError, match=r"history.ndjson:1"):
        load(path)


def test_a_history_with_a_gap_is_refused(tmp_path: Path) -> None:
    """Missing events would look like violations."""
    events = history(1, creates=3)
    dump(events[:2] + events[3:], tmp_path / "history.ndjson")

    with pytest.raises(ValueError, match="where 2 is due"):
        load(tmp_path / "history.ndjson")


def test_an_operation_without_an_answer_may_happen_at_any_time() -> None:
    """No latest instant is known for an operation given up or cut off by the history's end."""
    invoked = Event(i=0, t_ns=5, p="p", f=F.CREATE, type=Type.INVOKE)
    given_up = Event(i=1, t_ns=9, p="p", f=F.CREATE, type=Type.INFO)

    [lost] = History([invoked, given_up]).ops
    [cut] = History([invoked]).ops
    assert (NEVER_NS, 9) == (lost.ret_ns, lost.done_ns)
    assert (NEVER_NS, NEVER_NS) == (cut.ret_ns, cut.done_ns)
    assert lost.possible
    assert not lost.ok


@pytest.mark.parametrize(
    "events",
    [
        (("p", F.CREATE, Type.INVOKE), ("p", F.CREATE, Type.INVOKE)),
        (("p", F.CREATE, Type.OK),),
        (("p", F.CREATE, Type.INVOKE), ("p", F.CLAIM, Type.OK)),
    ],
    ids=["two-at-once", "unasked", "another"],
)
def test_a_process_does_one_thing_at_a_time(events: tuple[tuple[str, F, Type], ...]) -> None:
    """A history in which a process has two operations at once is refused."""
    told = [Event(i=n, t_ns=n, p=p, f=f, type=kind) for n, (p, f, kind) in enumerate(events)]

    with pytest.raises(ValueError, match="event"):
        History(told)


def test_calm_is_the_time_without_any_fault() -> None:
    """Overlapping faults make one gap in the calm."""
    story = Story()
    story.fault("kill", (1, 3), ("n1",))
    story.fault("pause", (2, 4), ("n2",))
    story.phase("end", 9)
    told = story.history()

    assert [(0, SECOND), (4 * SECOND, 9 * SECOND)] == told.calm
    assert 4 * SECOND == told.calm_since(5 * SECOND, 8 * SECOND)
    assert told.calm_since(SECOND // 2, 2 * SECOND) is None


def test_a_fault_without_an_end_leaves_no_calm() -> None:
    """Everything after the start of an endless fault is excused."""
    story = Story()
    story.fault("kill", (1, 3))
    story.phase("end", 9)
    events = [e for e in story.history().events if e.f is not F.FAULT or e.args.on]

    assert [(0, SECOND)] == History(events).calm
