"""Top screen: problems come first, on a screen of any size."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from codeq_cluster.cli.operate.look import (
    Flows,
    Look,
    NodeLine,
    OverviewLines,
    Peer,
    ProblemLine,
    Queue,
    RatesLine,
    Series,
    ServingNodeLine,
    ShardLine,
    Tenant,
    TotalsLine,
)
from codeq_cluster.cli.operate.top_screen import screen

_RATES = RatesLine(created=1234.5, started=1000.0, completed=999.9, failed=0.1)


def _queue(name: str) -> Queue:
    return Queue(name, 12_345, 12, 34, 5, 7_300, rates=_RATES)


def _look(*, problems: int = 1, shards: int = 4, queues: int = 6) -> Look:
    busy = [_queue(f"queue-{n}-{'x' * 40}") for n in range(queues)]
    return Look(
        at_s=10.0,
        cluster="production",
        serving=ServingNodeLine(node="n1", nodes=[NodeLine("n1", connected=True), NodeLine("n2")]),
        totals=TotalsLine(ready=74_070, failed=3),
        overview=OverviewLines(
            problems=[
                ProblemLine(f"n{n}", "bad", f"Node n{n} is not connected") for n in range(problems)
            ],
            rates=_RATES,
            busy=busy,
            queues=queues,
        ),
        shards=tuple(
            ShardLine(n, "n1", "n1", 7, 1_000, 1_000, [Peer("n2", connected=True, match_index=958)])
            for n in range(shards)
        ),
    )


def _drawn(
    look: Look, *, before: Look | None = None, width: int = 80, height: int = 24
) -> list[str]:
    flows = Flows()
    flows.add(Series(step=5, first=1, created=[0, 5, 10], completed=[1, 1, 1]))
    output = StringIO()
    console = Console(
        file=output, width=width, height=height, highlight=False, markup=False, emoji=False
    )
    console.print(screen(look, before, flows, console=console, said="12:00:00"))
    return output.getvalue().splitlines()


def _first_shard(lines: list[str]) -> list[str]:
    return lines[1 + next(n for n, line in enumerate(lines) if line.startswith("SHARD"))].split()


@pytest.mark.parametrize("problems", [0, 1, 30])
@pytest.mark.parametrize("shards", [1, 64])
@pytest.mark.parametrize("queues", [0, 3, 16])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (132, 50), (80, 18)])
def test_any_state_fits_the_screen(
    problems: int, shards: int, queues: int, width: int, height: int
) -> None:
    """Neither the lines nor their number exceed the screen."""
    look = _look(problems=problems, shards=shards, queues=queues)
    lines = _drawn(look, width=width, height=height)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_numbers_are_whole_at_80_columns() -> None:
    """Names are cut before numbers are."""
    row = next(line for line in _drawn(_look()) if line.startswith("queue-0"))

    assert "…" in row
    assert ["12,345", "12", "34", "5", "2h", "1,234.5", "999.9", "0.1"] == row.split()[1:]


def test_omitted_lines_are_counted() -> None:
    """The reader sees that the screen does not show everything."""
    lines = _drawn(_look(problems=30, shards=64, queues=16))
    problems = sum("is not connected" in line for line in lines)

    assert f" and {30 - problems} more" in lines


def test_a_shard_s_rate_is_that_since_the_look_before() -> None:
    """It shows 42 entries in two seconds, and the peer that lacks the most."""
    now = _look(shards=1)
    (shard,) = now.shards
    earlier = ShardLine(0, "n1", "n1", 7, shard.commit_index - 42, 958, shard.peers)
    row = _first_shard(_drawn(now, before=replace(now, at_s=8.0, shards=(earlier,))))

    assert ["0", "n1", "7", "1,000", "21.0", "n2", "by", "42"] == row


def test_a_node_that_is_behind_the_one_before_shows_no_rate() -> None:
    """The previous look may come from another node."""
    now = _look(shards=1)
    (shard,) = now.shards
    ahead = ShardLine(0, "n1", "n1", 7, shard.commit_index + 1, 0, [])

    row = _first_shard(_drawn(now, before=replace(now, at_s=8.0, shards=(ahead,))))

    assert "-" == row[4]


def test_nodes_that_are_away_are_named_at_each_shard() -> None:
    """They come before nodes that are only behind."""
    look = _look(shards=1)
    away = ShardLine(
        0, "n1", None, 7, 9, 9, [Peer("n2"), Peer("n3", connected=True, match_index=1)]
    )
    leaderless = ServingNodeLine("n1", look.serving.nodes, [0])
    text = "\n".join(_drawn(replace(look, shards=(away,), serving=leaderless)))

    assert "n2 away" in text
    assert "Shards without a leader that n1 knows: 0" in text
    assert "none" in text


def test_an_operator_without_a_tenant_sees_each_tenant_s_share() -> None:
    """An operator sees no queue of any tenant."""
    overview = OverviewLines(tenants=[Tenant("acme", 2, TotalsLine(ready=7)), Tenant("", 1)])
    lines = _drawn(replace(_look(), totals=None, overview=overview))

    assert [
        ["acme", "2", "7"],
        ["_", "1", "0"],
    ] == [line.split()[:3] for line in lines if line.startswith(("acme", "_"))]


def test_names_cannot_command_the_terminal() -> None:
    """A queue's name or a node's text is shown on one line without control characters."""
    look = _look(queues=0)
    hostile = OverviewLines(
        problems=[ProblemLine("it", "bad", "[red]\x1b[2J\nnext")],
        busy=[_queue("a\x1b[31mb")],
        queues=1,
    )
    text = "\n".join(_drawn(replace(look, overview=hostile)))

    assert "\x1b" not in text
    assert "[red]" in text
