"""Logs: each line is one JSON object with an event and its fields."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path

import pytest

import codeq_cluster
from codeq_cluster.telemetry.logs import EVENTS_MAX, WINDOW_S, JsonLines, Storms


def line(record: logging.LogRecord) -> dict[str, object]:
    """Return a formatted record, parsed."""
    text = JsonLines(node="n1").format(record)
    assert "\n" not in text
    fields: dict[str, object] = json.loads(text)
    return fields


def record(**fields: object) -> logging.LogRecord:
    """Return a record like that of `log.info("lease expired", extra=fields)`."""
    made = logging.makeLogRecord({"msg": "lease expired", "levelno": 20, "levelname": "INFO"})
    made.created = 1.5
    made.name = "here"
    vars(made).update(fields)
    return made


def test_a_line_is_an_event_and_its_fields() -> None:
    """Fields keep their types."""
    assert {
        "ts": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "event": "lease expired",
        "node": "n1",
        "logger": "here",
        "task_id": "t",
        "attempt": 2,
        "peers": ["a", "b"],
        "ready": False,
        "since": None,
    } == line(record(task_id="t", attempt=2, peers=("a", "b"), ready=False, since=None))


def test_no_field_replaces_a_lines_own_keys() -> None:
    """A field cannot replace a line's source or level."""
    package = Path(codeq_cluster.__file__).parent
    fields = {
        (file.name, key.value)
        for file in package.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.keyword) and call.arg == "extra"
        for given in ast.walk(call.value)
        if isinstance(given, ast.Dict)
        for key in given.keys
        if isinstance(key, ast.Constant)
    }

    assert ("group.py", "shard") in fields
    assert not [each for each in fields if each[1] in line(record(stack_info="s"))]


def test_whatever_is_logged_fits_one_line() -> None:
    """Odd values become text; long ones are cut; line breaks are escaped."""
    odd = record(error=ValueError("a\nb"), dump="x" * 100_000, text="\ud800", nan=float("nan"))
    fields = line(odd)

    assert "a\nb" == fields["error"]
    assert len(str(fields["dump"])) < 5_000


def test_an_exception_comes_with_its_traceback() -> None:
    """A bug must be found from its log line alone."""
    with pytest.raises(ValueError, match="boom") as raised:
        int("boom")
    made = record(exc_info=(raised.type, raised.value, raised.tb))

    assert "ValueError: invalid literal" in str(line(made)["exception"])


def test_a_storm_of_one_event_is_written_in_part() -> None:
    """Each window writes its first ones; the last of them says that more are not written."""
    storms = Storms()
    storm = [record(levelno=logging.ERROR, lineno=7, task=n) for n in range(2 * EVENTS_MAX)]
    other = record(levelno=logging.ERROR, lineno=8)
    later = record(levelno=logging.ERROR, lineno=7, created=1.5 + WINDOW_S)
    frequent = [record(lineno=9) for _ in range(2 * EVENTS_MAX)]

    written = [each for each in storm if storms.filter(each)]
    assert storm[:EVENTS_MAX] == written
    assert [written[-1]] == [each for each in written if "more" in line(each)]
    assert storms.filter(other)
    assert storms.filter(later)
    assert all(map(storms.filter, frequent))
