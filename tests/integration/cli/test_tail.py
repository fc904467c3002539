"""Tail: the events of a real broker, one per line, soon after they happen."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.cli.operate.deaths import Deaths
from codeq_cluster.client import Operator, Selection
from codeq_cluster.testing.broker import LocalBroker
from tests.integration.cli.terminal import run


async def _die(broker: LocalBroker, command: str) -> str:
    """Create a dead letter; return its id."""
    async with broker.client() as client, broker.leases() as leases:
        made = await client.create(command, 1, max_attempts=1)
        (task,) = await leases.claim([command], lease_s=60, worker_name="told:7")
        await leases.nack(task, "of a broken leg")
    return made.id


async def test_changes_and_dead_letters_are_printed_until_ctrl_c(
    broker: LocalBroker, variables: Mapping[str, str]
) -> None:
    """The exit code is a shell's code for an interrupted process."""
    async with broker.operator() as operator:
        await operator.put_topic("told-before", {"weight": 2})
        with run("tail", "--interval", "1", environment=variables) as terminal:
            terminal.shows("topic.put told-before")
            await operator.put_topic("told-after", {"weight": 2})
            task_id = await _die(broker, "told-of")
            terminal.shows("topic.put told-after")
            # The name does not fit into eighty columns, so it is wrapped below the first word.
            terminal.shows(f"{task_id} of told-of, by\r\n{' ' * 29}test/told:7: of a broken leg")
            terminal.shows("told-of: 1 created")
            terminal.signal(signal.SIGINT)
            code, shown = terminal.ended()

            assert (130, terminal.modes_before) == (code, terminal.modes)
    assert 1 == shown.count("topic.put told-before")
    assert "Traceback" not in shown


class _Overtaken(Operator):
    """An operator whose every count of the queues is out of date when it is read."""

    overtaking: Callable[[], Awaitable[object]]

    async def queues(self) -> Sequence[Mapping[str, Any]]:
        """Count, and let something happen."""
        counted = await super().queues()
        await self.overtaking()
        return counted


async def test_each_dead_letter_is_printed_once_while_others_die(broker: LocalBroker) -> None:
    """Tasks that die between the count and the list are neither lost nor printed twice."""
    died = [await _die(broker, "dying") for _ in range(3)]

    async def nothing() -> None:
        pass

    async def one_more() -> None:
        died.append(await _die(broker, "dying"))

    async with _Overtaken([broker.url], token=broker.token) as operator:
        operator.overtaking = one_more
        overtaken = Deaths(operator)
        await overtaken.begin()
        printed = [event.text for _ in range(4) for event in await overtaken.since()]
        operator.overtaking = nothing
        printed += [event.text for event in await overtaken.since()]

    assert sorted(
        f"{each} of dying, by test/told:7: of a broken leg" for each in died[3:]
    ) == sorted(printed)


async def test_a_task_that_dies_again_is_printed_again(broker: LocalBroker) -> None:
    """A requeue takes back nothing that was printed, and its task is a new dead letter later."""
    async with broker.operator() as operator, broker.leases() as leases:
        deaths = Deaths(operator)
        await deaths.begin()
        task_id = await _die(broker, "dying-twice")
        printed = [event.text for event in await deaths.since()]
        await operator.requeue("dying-twice", Selection(ids=(task_id,)))
        printed += [event.text for event in await deaths.since()]
        (task,) = await leases.claim(["dying-twice"], lease_s=60)
        await leases.nack(task, "of old age")
        printed += [event.text for event in await deaths.since()]

    assert [
        f"{task_id} of dying-twice, by test/told:7: of a broken leg",
        f"{task_id} of dying-twice, by test: of old age",
    ] == printed


def test_lines_of_one_kind_are_had_alone(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of other kinds are left out."""
    with broker.sync_operator() as operator:
        operator.put_topic("told-alone", {"weight": 2})
    code = main(["tail", "--seconds", "0.5", "--kind", "audit", "--lines", "1"])
    audit = capsys.readouterr().out
    main(["tail", "--seconds", "0.5", "--kind", "dead", "--kind", "leader"])

    assert 0 == code
    assert "topic.put told-alone" in audit
    assert "" == capsys.readouterr().out


def test_programs_get_objects(broker: LocalBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line has one object; when its time is over, the command ends with 0."""
    with broker.sync_operator() as operator:
        operator.put_topic("told-as-json", {"weight": 2})
    code = main(["tail", "--json", "--seconds", "0.5", "--lines", "1"])

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert 0 == code
    assert ["test topic.put told-as-json version 1"] == [
        row["text"] for row in rows if row["kind"] == "audit"
    ]


@pytest.mark.parametrize(
    "flags", [("--interval", "0"), ("--lines", "501"), ("--seconds", "-1")], ids=str
)
def test_what_is_out_of_bounds_is_a_wrong_use(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line with the allowed values."""
    assert 2 == main(["tail", *flags])
    assert "must be" in capsys.readouterr().err


def test_tasks_are_followed_by_queue_and_tag(
    broker: LocalBroker, variables: Mapping[str, str]
) -> None:
    """Each change is a line, none of them lost since a cursor; programs get objects."""
    with broker.sync_client() as client:
        after = client.events_cursor()
        mine = client.create("told-task", 1, tags={"env": "told"}).id
        other = client.create("told-task", 1).id
        client.cancel(mine)
        client.cancel(other)
    queue = ("tail", "--after", after, "--command", "told-task")
    with run(*queue, "--json", environment=variables) as terminal:
        terminal.shows(f'"kind": "ready", "taskId": "{other}"')
        terminal.shows(f'"kind": "cancelled", "taskId": "{other}"')
        terminal.signal(signal.SIGINT)
        code, _ = terminal.ended()
    tagged = ("tail", "--after", after, "--tag", "env:told", "--kind", "cancelled")
    with run(*tagged, environment=variables) as terminal:
        terminal.shows(f"cancelled  {mine} of")
        terminal.signal(signal.SIGINT)
        _, shown = terminal.ended()

    assert 130 == code
    assert other not in shown
    assert "ready" not in shown


@pytest.mark.parametrize(
    "flags",
    [("--task", "t", "--kind", "audit"), ("--tag", "env"), ("--kind", "completed")],
    ids=str,
)
def test_what_tasks_or_clusters_do_not_have_is_a_wrong_use(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what may be used."""
    assert 2 == main(["tail", *flags])
    assert "use " in (said := capsys.readouterr().err) or "must be" in said
