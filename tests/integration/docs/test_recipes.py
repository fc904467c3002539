"""The recipes: each program does what it promises, and its output is the one shown below it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from codeq_cluster.testing.broker import LocalBroker
from tests.acceptance.runbooks import Block
from tests.integration.docs.pages import addressed, page, run, shell
from tests.integration.docs.stage import Stage

_BLOCKS = page("recipes.md")
_SHOWN = {
    said.section: (program, said.body)
    for program, said in pairwise(_BLOCKS)
    if said.marks == "shows"
}
# By language: what runs a program, and how its file's name ends.
_RUN_BY = {"python": (sys.executable, "py"), "js": ("node", "mjs")}
_PROGRAMS = {section: pair for section, pair in _SHOWN.items() if pair[0].language in _RUN_BY}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for every program."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.mark.parametrize("section", _PROGRAMS)
def test_a_recipe_keeps_its_promise(section: str, broker: LocalBroker, tmp_path: Path) -> None:
    """It prints the output on the page, which demonstrates the recipe's promise."""
    program, shown = _PROGRAMS[section]
    runs, ending = _RUN_BY[program.language]
    file = tmp_path / f"{program.marks}.{ending}"
    file.write_text(addressed(broker, program.body))

    assert shown == run(broker, [runs, str(file)], directory=tmp_path)


@pytest.mark.needs("curl")
def test_a_result_over_http_makes_what_follows(broker: LocalBroker, tmp_path: Path) -> None:
    """The page's request is answered with the task that it has made."""
    [request] = [block.body for block in _BLOCKS if block.marks == "curl"]
    stage = Stage(broker)
    task = stage.leased()
    said = json.loads(shell(broker, f"TASK={task}\n{request}", directory=tmp_path))
    made = stage.send("GET", f"/tasks/{said['next'][0]['id']}")

    assert ("invoice", '"book"', task) == (made["command"], made["payload"], made["parentId"])


def test_a_schedule_is_put_from_a_shell(broker: LocalBroker, tmp_path: Path) -> None:
    """The page's commands put the schedule whose instants they show."""
    [commands] = [block.body for block in _BLOCKS if block.marks == "run"]
    said = shell(broker, commands, directory=tmp_path)
    with broker.sync_operator() as operator:
        made = operator.schedule("weekly-report")

    assert ("0 6 * * MON", "Europe/Berlin", "report") == (made.cron, made.zone, made.task.command)
    assert all(each.local.replace("T", " ") in said for each in made.next)


def test_every_block_of_the_page_is_run() -> None:
    """A recipe is a program with its output."""
    kinds = [_kind(block) for block in _BLOCKS]

    assert {"program", "shows", "curl", "run"} == set(kinds)
    assert len(_PROGRAMS) == kinds.count("program")
    assert len(_SHOWN) == len({block.section for block in _BLOCKS})


def _kind(block: Block) -> str:
    return "program" if block.language in _RUN_BY else block.marks
