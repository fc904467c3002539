"""Comparison: the README's figures of other brokers, taken from docs/performance.md."""

from __future__ import annotations

import re

BEGIN = "<!-- comparison: begin; make pages writes what follows -->"
END = "<!-- comparison: end -->"

# The names of the rows on that page, mapped to their names in the README.
_ROWS = {
    "synced when acknowledged": "on disk when a create is answered",
    "acknowledged but not handed out / handed out twice, over that": (
        "`kill -9` of the leader: tasks not handed out / handed out twice"
    ),
    "cycles/s, 32 in flight": "create, claim, result a second, 32 at a time",
    "cycles/s in batches, 4 in flight": "the same in batches",
    "lone create, p50 / p99": "a lone create, p50 / p99",
    "CPU a cycle at 32, servers / client": "CPU a task, servers / client",
    "memory of a node, idle / loaded": "memory of a node, idle / loaded",
}
_COLUMNS = {
    "codeq-cluster, 4 shards": "codeq-cluster",
    "codeQ (Go), 4 groups": "codeQ (Go)",
    "NATS JetStream, R3": "NATS JetStream, R3",
    "RabbitMQ, quorum queue": "RabbitMQ, quorum queue",
}
_SPREAD = re.compile(r" \([^)]* to [^)]*\)")


def compared(readme: str, performance: str) -> str:
    """Return the README with the medians of the measurements in its table.

    Raises:
        KeyError: A row or a column no longer exists.
        ValueError: The README has no place for the table.
    """
    before, _, rest = readme.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"README.md needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{_table(performance)}\n{END}{after}"


def _table(performance: str) -> str:
    measured = performance.partition("<!-- peers: begin")[2].partition("<!-- peers: end")[0]
    head, _, *rows = [_cells(line) for line in measured.splitlines() if line.startswith("|")]
    by_name = {name: dict(zip(head[1:], cells, strict=True)) for name, *cells in rows}
    lines = [
        "| | " + " | ".join(_COLUMNS.values()) + " |",
        "|---|" + "---|" * len(_COLUMNS),
    ]
    for name, shown in _ROWS.items():
        cells = [_SPREAD.sub("", by_name[name][column]) for column in _COLUMNS]
        lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]
