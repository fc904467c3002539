"""Ledger: one line per run, with the state of the product that it tested."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from jepsen_lite.checker.judging import Exit, Judgement
from jepsen_lite.checker.validity import counts, duration_s
from jepsen_lite.history import load
from jepsen_lite.operations import History
from jepsen_lite.running import HOME, about_run

LEDGER = HOME / "ledger.jsonl"


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run, or one test that stands in for a run on a mutant; empty fields are left out.

    Attributes:
        begun: UTC, RFC 3339.
        commit, tree: Of the product, as in `Checkout`; for a mutant, of the tree it was made from.
        mutant: Name of the patch, empty for the unchanged product.
        patch: Of a mutant: the patch's own hash, 12 digits.
        test: Of a mutant that no run shows: the test that must fail.
        seconds: How long load and rest lasted, by the history.
        took_s: Of a mutant: the whole duration, with start and judgement.
        verdict: `valid`, `violation` or `unknown`.
        violated: Guarantees that were found broken.
    """

    begun: str
    commit: str
    tree: str = ""
    mutant: str = ""
    patch: str = ""
    test: str = ""
    workload: str = ""
    nemeses: tuple[str, ...] = ()
    nodes: int = 0
    shards: int = 0
    seed: int = 0
    seconds: float = 0.0
    took_s: float = 0.0
    operations: int = 0
    acknowledged: int = 0
    unknown: int = 0
    faults: dict[str, int] = {}
    verdict: str
    violated: tuple[str, ...] = ()
    shortcomings: tuple[str, ...] = ()


def line_of(directory: Path, judgement: Judgement) -> Line:
    """Return the line of a run that has been judged."""
    about = about_run(directory)
    history = History(load(directory / "history.ndjson"))
    found = counts(history)
    faults = found.pop("faults")
    found.pop("happenings")
    return Line(
        begun=about.begun,
        commit=about.commit,
        tree=about.tree,
        mutant=about.options.mutant,
        workload=about.options.workload,
        nemeses=about.options.nemeses,
        nodes=about.options.nodes,
        shards=about.options.shards,
        seed=about.options.seed,
        seconds=round(duration_s(history), 1),
        operations=len(history.ops),
        acknowledged=sum(kind["ok"] for kind in found.values()),
        unknown=sum(kind["info"] for kind in found.values()),
        faults=faults,
        verdict=told(judgement.exit),
        violated=tuple(v.guarantee for v in judgement.verdicts if v.valid is False),
        shortcomings=tuple(judgement.shortcomings),
    )


def told(outcome: Exit) -> str:
    """Return the ledger's word for an outcome."""
    return outcome.name.lower()


def enter(line: Line, ledger: Path = LEDGER) -> None:
    """Append a line."""
    with ledger.open("ab") as lines:
        lines.write(msgspec.json.encode(line) + b"\n")


def read(ledger: Path = LEDGER) -> list[Line]:
    """Return all lines, oldest first; none if the ledger does not exist yet."""
    if not ledger.exists():
        return []
    return [msgspec.json.decode(line, type=Line) for line in ledger.read_bytes().splitlines()]
