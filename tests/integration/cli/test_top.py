"""Top: a screen of a real broker, and a terminal that is restored at the end."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.client import Live
from codeq_cluster.testing.broker import LocalBroker
from tests.harness.waiting import until
from tests.integration.cli.terminal import ALTERNATE, BACK, WITHIN_S, run


@pytest.fixture(scope="module", autouse=True)
def _tasks(broker: LocalBroker) -> None:
    """Create tasks and wait until they are shown: a node's view may be a second old."""
    with broker.sync_client() as client:
        for number in range(3):
            client.create("seen-by-top", number)

    async def seen() -> None:
        async with Live([broker.url], token=broker.token) as live:

            async def there() -> bool:
                waiting = (await live.look("overview"))["view"]["waiting"]
                return ("seen-by-top", 3) in {(row["command"], row["ready"]) for row in waiting}

            await until(there, within_s=WITHIN_S, what="three tasks on the page")

    asyncio.run(seen())


def test_the_clusters_state_is_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal the screen is printed once."""
    code = main(["top"])

    printed = capsys.readouterr().out
    assert 0 == code
    assert "1 of 1 nodes connected with n1" in printed
    assert ["3"] == [line.split()[1] for line in printed.splitlines() if "seen-by-top" in line]


def test_programs_get_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The names are those of the HTTP API."""
    code = main(["top", "--json"])

    shown = json.loads(capsys.readouterr().out)
    assert 0 == code
    assert ("test", "n1", None) == (shown["cluster"], shown["node"], shown["trouble"])
    assert ("seen-by-top", 3) in {(row["command"], row["ready"]) for row in shown["waiting"]}
    assert ["n1"] == [shard["leaderId"] for shard in shown["shards"]]


def test_a_token_that_is_not_taken_ends_it_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends before it opens the screen."""
    code = main(["top", "--token", "wrong"])

    assert 3 == code
    assert "codeq-cluster init" in capsys.readouterr().err


def test_an_interval_out_of_bounds_is_a_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    """A shorter interval would cost the node too much."""
    assert 2 == main(["top", "--interval", "0.1"])
    assert "must be 1 to 60" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), ("xq", 0)], ids=str
)
def test_the_terminal_is_restored_after_any_end(
    how: signal.Signals | str, code: int, variables: Mapping[str, str]
) -> None:
    """The earlier screen and the echo return, and keys typed meanwhile do not reach the shell."""
    with run("top", environment=variables) as terminal:
        terminal.shows("seen-by-top")
        quiet = terminal.modes
        if isinstance(how, signal.Signals):
            terminal.signal(how)
        else:
            terminal.type(how)
        ended, shown = terminal.ended()

        assert (code, terminal.modes_before) == (ended, terminal.modes)
    assert quiet != terminal.modes_before
    assert 0 <= shown.index(ALTERNATE) < shown.index(BACK)
    assert "Traceback" not in shown
    assert shown.endswith("-- the end --")
