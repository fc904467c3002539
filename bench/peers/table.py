"""Table: a report as Markdown, and its place between two markers of a document."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench.job import Sample
from bench.peers.report import Report, Spread, System, spread

BEGIN = "<!-- peers: begin; written by `make bench-peers ARGS=--write` -->"
END = "<!-- peers: end -->"


def table(report: Report) -> str:
    """Return the method of the measurement, and a table with a column for each system."""
    systems = report.systems
    lines = [
        _circumstances(report),
        "",
        "| | " + " | ".join(system.name for system in systems) + " |",
        "|---|" + "---|" * len(systems),
    ]
    lines += [f"| {name} | " + " | ".join(map(cell, systems)) + " |" for name, cell in _ROWS]
    return "\n".join(lines)


def _circumstances(report: Report) -> str:
    machine = report.machine
    changed = " with uncommitted changes" if machine["changed"] else ""
    rounds = max((len(system.rounds) for system in report.systems), default=0)
    cores = [
        sample.foreign_cores
        for system in report.systems
        for one in system.rounds
        for sample in one.samples.values()
    ]
    foreign = statistics.median(cores) if cores else 0.0
    return (
        f"`{report.command}`, {report.when}, commit `{str(machine['commit'])[:10]}`{changed};"
        f" {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']}, fsync"
        f" {machine['fsyncMs']} ms; other work took {foreign:.1f} cores meanwhile;"
        f" medians of {rounds} rounds (least to most)."
    )


def placed(document: str, text: str) -> str:
    """Return the document with the text between the markers replaced.

    Raises:
        ValueError: It has no markers, or more than one pair.
    """
    if document.count(BEGIN) != 1 or document.count(END) != 1:
        raise ValueError(f"exactly one line {BEGIN} and one {END} are needed")
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


Cell = Callable[[System], str]


def _rate(load: str) -> Cell:
    return lambda system: _told(spread(system, load, lambda sample: sample.per_s), "{:,.0f}")


def _latency(load: str) -> Cell:
    def cell(system: System) -> str:
        middle = spread(system, load, lambda sample: sample.slowest.p50)
        late = spread(system, load, lambda sample: sample.slowest.p99)
        return f"{middle.median:.2f} / {late.median:.1f} ms" if middle and late else ""

    return cell


def _cpu(load: str) -> Cell:
    def generator_ms(sample: Sample) -> float:
        return 1000 * sample.generator_s / max(1, sample.tasks)

    def cell(system: System) -> str:
        nodes = spread(system, load, lambda sample: sample.cpu_ms())
        client = spread(system, load, generator_ms)
        return f"{nodes.median:.2f} / {client.median:.2f} ms" if nodes and client else ""

    return cell


def _memory(system: System) -> str:
    idle = Spread.of([one.rss_idle_mib for one in system.rounds])
    loaded = Spread.of([one.rss_loaded_mib for one in system.rounds])
    return f"{idle.median:.0f} / {loaded.median:.0f} MiB"


def _start(system: System) -> str:
    return _told(Spread.of([one.first_create_s for one in system.rounds]), "{:.1f}") + " s"


def _failover(system: System) -> str:
    kills = [one.failover for one in system.rounds if one.failover is not None]
    if not kills:
        return ""
    return _told(Spread.of([kill.worst_s for kill in kills]), "{:.1f}") + " s"


def _kept(system: System) -> str:
    kills = [one.failover for one in system.rounds if one.failover is not None]
    if not kills:
        return ""
    created = sum(kill.created for kill in kills)
    missing, twice = sum(kill.missing for kill in kills), sum(kill.twice for kill in kills)
    return f"{missing:,} / {twice:,} of {created:,}"


def _failed(system: System) -> str:
    return f"{sum(sum(s.failed.values()) for one in system.rounds for s in one.samples.values()):,}"


def _syncs(system: System) -> str:
    return "" if system.syncs_a_cycle is None else f"{system.syncs_a_cycle:.1f}"


def _told(figure: Spread | None, form: str) -> str:
    if figure is None:
        return ""
    middle, least, most = map(form.format, (figure.median, figure.least, figure.most))
    return middle if least == most else f"{middle} ({least} to {most})"


_ROWS: Sequence[tuple[str, Cell]] = (
    ("cycles/s, one at a time", _rate("cycle@1")),
    ("cycles/s, 8 in flight", _rate("cycle@8")),
    ("cycles/s, 32 in flight", _rate("cycle@32")),
    ("cycles/s, 128 in flight", _rate("cycle@128")),
    ("cycles/s in batches, 4 in flight", _rate("batch")),
    ("tasks a batch", lambda system: f"{system.batch}"),
    ("creates/s, 32 in flight", _rate("create@32")),
    ("lone create, p50 / p99", _latency("create@1")),
    ("slowest request of a cycle at 32, p50 / p99", _latency("cycle@32")),
    ("CPU a cycle at 32, servers / client", _cpu("cycle@32")),
    ("synced when acknowledged", lambda system: system.syncs),
    ("syncs for a lone cycle, all nodes", _syncs),
    ("memory of a node, idle / loaded", _memory),
    ("start to first acknowledged create", _start),
    ("longest wait of a create over `kill -9` of the leader", _failover),
    ("acknowledged but not handed out / handed out twice, over that", _kept),
    ("failed requests, all loads", _failed),
)
