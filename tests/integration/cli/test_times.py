"""Times: every command that prints an instant, in a real terminal elsewhere in the world."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from codeq_cluster.testing.broker import LocalBroker
from tests.integration.cli.terminal import run

_OFFSET = timedelta(hours=5, minutes=45)  # Nepal's, at any time of the year.
_PLACE = {"TZ": "Asia/Kathmandu"}
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?![\d.])")
_SENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run a broker for these tests alone: other tests' audit records are wider than a row."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def task_id(broker: LocalBroker) -> str:
    """Return the id of a dead letter of the queue `timed`, beside a task that waits."""
    return asyncio.run(_died(broker))


async def _died(broker: LocalBroker) -> str:
    async with broker.client() as client, broker.leases() as leases, broker.operator() as operator:
        await operator.put_topic("timed", {"maxAttempts": 1})
        await client.create("timed", 1, delay=3600)
        made = await client.create("timed", 1)
        (task,) = await leases.claim(["timed"], lease_s=60)
        await leases.nack(task, "broken")
    return made.id


_COMMANDS = [
    ("task", "get", "ID"),
    ("task", "result", "ID"),
    ("task", "list", "--queue", "timed"),
    ("dlq", "ls", "timed"),
    ("dlq", "ls", "timed", "--group"),
    ("dlq", "show", "timed", "ID"),
    ("topic", "get", "timed"),
    ("audit", "--limit", "5"),
    ("tail", "--seconds", "1"),
    ("top", "--once"),
]


def _shown(words: tuple[str, ...], variables: Mapping[str, str], task_id: str) -> str:
    asked = [task_id if word == "ID" else word for word in words]
    with run(*asked, environment={**variables, **_PLACE}) as terminal:
        code, shown = terminal.ended()
    assert 0 == code, shown
    return shown


def _now(shown: str, offset: timedelta) -> bool:
    """Return whether the printed instants are of the last hours, by a clock with this offset."""
    now = datetime.now(UTC).replace(tzinfo=None) + offset
    found = [datetime.fromisoformat(each) for each in _LOCAL.findall(shown)]
    return bool(found) and all(abs(now - each) < timedelta(hours=2) for each in found)


@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_times_are_those_of_the_terminals_zone(
    words: tuple[str, ...], variables: Mapping[str, str], task_id: str
) -> None:
    """The offset is beside them or above them, and nothing is left as the API sent it."""
    shown = _shown(words, variables, task_id)

    assert _now(shown, _OFFSET), shown
    assert "+05:45" in shown
    assert not _SENT.search(shown)


@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_times_are_in_utc_if_asked(
    words: tuple[str, ...], variables: Mapping[str, str], task_id: str
) -> None:
    """The zone of the terminal does not matter then."""
    shown = _shown((*words, "--utc"), variables, task_id)

    assert _now(shown, timedelta()), shown
    assert "+00:00" in shown


@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_times_are_rfc_3339_if_asked(
    words: tuple[str, ...], variables: Mapping[str, str], task_id: str
) -> None:
    """They have milliseconds, as in the API's answers."""
    shown = _shown((*words, "--iso"), variables, task_id)

    assert _SENT.search(shown)
    assert not _LOCAL.search(shown)


def test_the_end_of_a_delay_is_an_instant_here(
    broker: LocalBroker, variables: Mapping[str, str]
) -> None:
    """The instant can be copied into --run-at."""
    with broker.sync_client() as client:
        made = client.create("later", 1, delay=7200)
        explained = client.explain(made.id)
    shown = _shown(("task", "explain", made.id), variables, made.id)
    (until,) = re.findall(r"\(until (.*)\)", " ".join(shown.split()))
    copied = _shown(
        ("task", "create", "--command", "later", "--payload", "1", "--run-at", until, "--json"),
        variables,
        made.id,
    )

    assert explained.until is not None
    assert explained.until.replace(microsecond=0) == datetime.fromisoformat(until)
    assert f'"runAt": "{explained.until:%Y-%m-%dT%H:%M:%S}.000Z"' in copied


def test_the_screen_of_top_has_the_time_of_the_terminals_zone(
    variables: Mapping[str, str],
) -> None:
    """Its first line ends with it."""
    with run("top", environment={**variables, **_PLACE}) as terminal:
        terminal.shows("+05:45")
        terminal.signal(signal.SIGINT)
        code, _ = terminal.ended()

    assert 130 == code
