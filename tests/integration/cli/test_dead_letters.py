"""Dead letters and lists of tasks, as a person on call reads them."""

from __future__ import annotations

import asyncio
import json

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.cli.operate.cluster import _behind
from codeq_cluster.testing.broker import LocalBroker


@pytest.fixture(scope="module")
def dead(broker: LocalBroker) -> list[str]:
    """Return the ids of two dead letters of `mails` and one of `photos`, the oldest first."""
    return asyncio.run(_died(broker))


async def _died(broker: LocalBroker) -> list[str]:
    ids = []
    async with broker.client() as client, broker.leases() as leases:
        for queue, error in (("mails", "550 for 7"), ("mails", "550 for 8"), ("photos", "p7.bmp")):
            ids.append((await client.create(queue, 1, max_attempts=1)).id)
            (task,) = await leases.claim([queue], lease_s=60)
            await leases.nack(task, error)
    return ids


def _lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    capsys.readouterr()
    assert 0 == main(words)
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_kinds_of_errors_are_listed_across_queues(
    dead: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first look on call needs no name of a queue."""
    rows = _lines(capsys, "dlq", "ls", "--group", "--iso")
    main(["dlq", "ls", "--group", "--json"])
    document = json.loads(capsys.readouterr().out)

    found = [(row[0], row[1], " ".join(row[4:])) for row in rows[1:]]
    assert {("mails", "2", "# for #"), ("photos", "1", "p#.bmp")} <= {*found}
    assert 2 == document["queues"]["mails"]["matched"]


def test_dead_letters_of_one_kind_are_listed_across_queues(
    dead: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A kind is named by itself or by any of its errors."""
    for kind in ("550 for 9", "# for #"):
        rows = _lines(capsys, "dlq", "ls", "--kind", kind, "-q")

        assert {dead[0], dead[1]} == {row[0] for row in rows}


def test_a_queue_whose_tasks_have_all_ended_is_known(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A filter that leaves nothing does not make its name a misspelt one."""

    async def complete() -> None:
        async with broker.client() as client, broker.leases() as leases:
            await client.create("all-ended", 1)
            (task,) = await leases.claim(["all-ended"], lease_s=60)
            await leases.complete(task, b"1")

    asyncio.run(complete())
    pending = main(["task", "list", "--queue", "all-ended", "--status", "PENDING"])
    died = main(["dlq", "ls", "all-ended"])

    assert (0, 0) == (pending, died), capsys.readouterr().err


def test_a_list_may_have_dead_letters_alone(
    dead: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that are no tasks that have failed for good."""
    rows = _lines(capsys, "task", "list", "--queue", "mails", "--status", "DEAD", "-q")

    assert sorted(dead[:2]) == sorted(row[0] for row in rows)


def test_a_queue_is_shown_with_the_kinds_of_its_errors(
    dead: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors that differ only in numbers and ids are one line, as in the list and on the page."""
    rows = _lines(capsys, "queue", "inspect", "mails")

    assert ["2", "#", "for", "#"] == rows[-1]


def test_a_dead_letter_is_named_by_the_beginning_of_its_id(
    dead: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The page shows no more of it."""
    main(["dlq", "show", "photos", f"{dead[2][:13]}…", "--json"])
    shown = json.loads(capsys.readouterr().out)
    main(["dlq", "requeue", "photos", "--id", dead[2][:13], "--dry-run"])
    counted = capsys.readouterr().out

    assert dead[2] == shown["task"]["id"]
    assert "1\n" == counted


def test_the_lowest_priority_is_a_number(
    dead: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The API leaves it out; a dash would say that there is none."""
    header, row = _lines(capsys, "task", "list", "--queue", "photos")

    assert "0" == row[header.index("PRIORITY")]


def test_an_empty_list_says_so(broker: LocalBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """A header alone looks like an answer that was cut off."""
    said = []
    for words in (("delivery", "ls"), ("dlq", "ls", "--error", "never"), ("aside", "ls")):
        main(words)
        said.append(capsys.readouterr().err)

    assert ["no deliveries\n", "no dead letters\n", "nothing is set aside\n"] == said


def test_a_list_across_queues_says_how_it_is_sorted(
    dead: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its column of times suggests otherwise."""
    said = []
    for words in (("dlq", "ls"), ("dlq", "ls", "mails"), ("task", "list")):
        main(words)
        said.append("sorted by queue, not by time\n" in capsys.readouterr().err)

    assert [True, False, True] == said


def test_a_leader_is_behind_nobody() -> None:
    """Another node does not know how much of the log each of the leader's followers has."""
    shard = {"leader": "n3", "commitIndex": 9}
    peers = [
        {"id": "n1", "connected": False},
        {"id": "n2", "connected": True, "matchIndex": 7},
        {"id": "n3", "connected": True},
        {"id": "n4", "connected": True},
    ]

    assert ["n1 (away)", "n2 (2)", "n3 (leads)", "n4 (?)"] == [
        _behind(shard, peer) for peer in peers
    ]
