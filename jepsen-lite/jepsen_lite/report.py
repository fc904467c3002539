"""Report: one self-contained page on one run."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

from jepsen_lite import drawing
from jepsen_lite.checker.judging import PROMISES, Judgement
from jepsen_lite.checker.validity import counts, duration_s
from jepsen_lite.checker.verdict import Verdict, Violation
from jepsen_lite.history import Event, Type, load
from jepsen_lite.operations import SECOND, History, Op
from jepsen_lite.running import Run, about_run, check

SHOWN_MAX = 5  # Violations drawn per guarantee, the shortest first.
OPS_MAX = 40  # Drawn per violation.
LOG_LINES_MAX = 60
LOG_AROUND_S = 2

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 1240px; padding: 16px 24px;
  color: #1c2127; background: #fff }
h1 { font-size: 22px; margin: 0 0 4px } h2 { font-size: 17px; margin: 28px 0 8px }
h3 { font-size: 15px; margin: 18px 0 4px }
table { border-collapse: collapse }
td, th { padding: 3px 10px; text-align: left; vertical-align: top }
tr { border-bottom: 1px solid #e6e8eb } th { font-weight: 600 } td.n { text-align: right }
code, pre { font: 12px/1.4 ui-monospace, monospace } pre { background: #f6f7f8; padding: 8px;
  overflow-x: auto; white-space: pre-wrap }
.verdict { display: inline-block; padding: 2px 12px; border-radius: 4px; color: #fff;
  font-weight: 600 }
.valid, .kept { background: #2e7d46 } .violation, .broken { background: #b3261e }
.unknown, .unjudged { background: #7a7f87 }
.small { font-size: 8.5px } .label { font-size: 10.5px; fill: #333 } .tick { font-size: 9px;
  fill: #666; text-anchor: middle } .light { fill: #fff } .grid { stroke: #00000014 }
.chip { margin-right: 12px; white-space: nowrap } .chip i { display: inline-block; width: 11px;
  height: 11px; margin-right: 4px; vertical-align: -1px }
.muted { color: #666 } svg { display: block; margin: 4px 0 }
"""


def write(directory: Path) -> Path:
    """Judge a run's history and write `report.html` beside it."""
    judgement = check(directory)
    about = about_run(directory)
    history = History(load(directory / "history.ndjson"))
    page = directory / "report.html"
    page.write_text("".join(_page(about, history, judgement, directory)))
    return page


def _page(about: Run, history: History, judgement: Judgement, directory: Path) -> Iterator[str]:
    options = about.options
    word = judgement.exit.name.lower()
    title = f"{options.workload}, seed {options.seed}: {word}"
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    yield f"<style>{_STYLE}</style>"
    yield f'<h1><span class="verdict {word}">{word}</span> {escape(options.workload)} under '
    yield f"{escape(', '.join(options.nemeses) or 'no fault')}</h1>"
    yield f'<p class="muted">{escape(about.begun)}, commit {escape(about.commit)}, '
    yield f"{options.nodes} nodes, {options.shards} shards, {duration_s(history):.0f} s under "
    where = f"{about.network}, {about.host}, Python {about.python}"
    yield f"faults, {escape(where)}</p>"
    yield f"<p>Again: <code>{escape(about.command)}</code></p>"
    if judgement.shortcomings:
        yield "<h2>What the run lacks</h2><ul>"
        yield from (f"<li>{escape(line)}</li>" for line in judgement.shortcomings)
        yield "</ul>"
    yield "<h2>Guarantees</h2><table><tr><th><th>promise<th>verdict<th>judged<th>note"
    for verdict in judgement.verdicts:
        yield from _row(verdict)
    yield "</table>"
    yield f"<h2>Faults and leaders</h2>{drawing.faults(history)}<p>{drawing.legend(history)}</p>"
    yield f"<h2>Operations a second</h2>{drawing.rates(history)}"
    yield "<h2>Latency</h2><p class=muted>Claims that wait for work are left out.</p>"
    yield drawing.latencies(history)
    for verdict in judgement.verdicts:
        if verdict.violations:
            yield from _violations(verdict, history, directory)
    yield "<h2>What was done</h2>"
    yield from _counts(history)
    yield f"<h2>Clients</h2>{drawing.processes(history)}"


def _row(verdict: Verdict) -> Iterator[str]:
    name, word = {
        True: ("kept", "kept"),
        False: ("broken", f"broken {verdict.found}x"),
        None: ("unjudged", "not judged"),
    }[verdict.valid]
    link = f'<a href="#{verdict.guarantee}">{verdict.guarantee}</a>'
    yield f"<tr><td>{link if verdict.violations else verdict.guarantee}"
    yield f"<td>{escape(PROMISES[verdict.guarantee])}"
    yield f'<td><span class="verdict {name}">{word}</span><td class=n>{verdict.checked}'
    yield f"<td>{escape(verdict.note)}"


def _violations(verdict: Verdict, history: History, directory: Path) -> Iterator[str]:
    yield f'<h2 id="{verdict.guarantee}">{verdict.guarantee} broken: '
    yield f"{escape(PROMISES[verdict.guarantee])}</h2>"
    shortest = sorted(verdict.violations, key=lambda violation: len(violation.events))
    if verdict.found > SHOWN_MAX:
        yield f"<p class=muted>The {SHOWN_MAX} shortest of {verdict.found}.</p>"
    for violation in shortest[:SHOWN_MAX]:
        yield f"<h3>{escape(violation.text)}</h3>"
        events = [history.events[i] for i in violation.events]
        ops = _ops(history, violation)
        if ops:
            yield drawing.excerpt(history, ops[:OPS_MAX])
        yield f"<details><summary>{len(events)} events</summary><pre>"
        yield escape("\n".join(map(_line, events)))
        yield "</pre></details>"
        lines = list(_logs(events, history, directory))
        yield f"<details><summary>{len(lines)} lines of the nodes' logs around them</summary><pre>"
        yield escape("\n".join(lines[:LOG_LINES_MAX]))
        yield "</pre></details>"


def _ops(history: History, violation: Violation) -> list[Op]:
    numbers = set(violation.events)
    return [op for op in history.ops if op.i in numbers]


def _line(event: Event) -> str:
    told = event.args if event.type is Type.INVOKE else event.out
    fields = {
        name: value
        for name in told.__struct_fields__
        if (value := getattr(told, name)) not in ("", 0, -1, False, ())
    }
    seconds = event.t_ns / SECOND
    return (
        f"{event.i:7} {seconds:10.4f} s  {event.p} {event.f.value} {event.type.value}"
        f" {event.node} {json.dumps(fields, default=str, ensure_ascii=False)}"
    )


def _logs(events: list[Event], history: History, directory: Path) -> Iterator[str]:
    """Yield the nodes' log lines around these events, from the first to the last."""
    setup = history.phases.get("setup")
    if setup is None or not setup.args.detail.isdecimal() or not events:
        return
    zero = int(setup.args.detail) / SECOND - setup.t_ns / SECOND

    def stamp(ns: int, margin_s: float) -> str:
        moment = dt.datetime.fromtimestamp(zero + ns / SECOND + margin_s, tz=dt.UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    # Only the surroundings of the first and the last event: they may be minutes apart.
    ends = (events[0].t_ns, events[-1].t_ns)
    spans = [(stamp(ns, -LOG_AROUND_S), stamp(ns, LOG_AROUND_S)) for ns in ends]
    for log in sorted(directory.glob("*/node.log")):
        for line in log.read_text(errors="replace").splitlines():
            told = _stamp(line)
            if told and any(first <= told <= last for first, last in spans):
                yield f"{log.parent.name}  {line[:300]}"


def _stamp(line: str) -> str:
    """Return a log line's timestamp; empty if the line does not begin with one."""
    head = '{"ts": "'
    return line[len(head) : len(head) + 24] if line.startswith(head) else ""


def _counts(history: History) -> Iterator[str]:
    found = counts(history)
    struck = found.pop("faults")
    found.pop("happenings")
    yield "<table><tr><th>operation<th>ok<th>fail<th>info"
    for name, by_type in sorted(found.items()):
        cells = "".join(f"<td class=n>{by_type[kind]}" for kind in ("ok", "fail", "info"))
        yield f"<tr><td>{escape(name)}{cells}"
    yield "</table><p>Faults seen to be applied: "
    yield escape(", ".join(f"{name} {count}" for name, count in sorted(struck.items())) or "none")
    yield "</p>"
