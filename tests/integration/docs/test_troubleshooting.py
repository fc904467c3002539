"""Troubleshooting: the test causes each problem, and its symptoms are those on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import pytest

from codeq_cluster.testing.broker import TOKEN, LocalBroker
from tests.acceptance.runbooks import steps
from tests.integration.docs.pages import DOCS, differing, shell
from tests.integration.docs.stage import NO_OWNER, Stage

_PAGE = (DOCS / "troubleshooting.md").read_text()
_PRELUDE, _REST = _PAGE.split("```sh prelude\n", 1)[1].split("```\n", 1)
_STEPS = {
    section: list(taken) for section, taken in groupby(steps(_REST), key=lambda step: step.section)
}

_ALL = ["codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack", "codeq:result"]
_SETTINGS = {
    "resultWebhookMaxAttempts": 1,
    "auth": {
        "worker": [
            {
                "kind": "static",
                "tokens": [
                    {"token": TOKEN, "subject": "test", "scopes": _ALL, "eventTypes": ["*"]},
                    {
                        "token": "narrow-token",
                        "subject": "narrow",
                        "scopes": _ALL,
                        "eventTypes": ["send-mail"],
                    },
                ],
            }
        ]
    },
}


def _leased_again(stage: Stage) -> None:
    stage.set["TASK"] = stage.leased(lease_s=60)
    stage.broker.advance(minutes=1.1)
    stage.claimed(stage.set["TASK"])


def _done_twice(stage: Stage) -> None:
    _leased_again(stage)
    said = {"status": "COMPLETED", "result": {"width": 640}}
    stage.send("POST", f"/tasks/{stage.set['TASK']}/result", said)


def _keyed(stage: Stage) -> None:
    stage.created(idempotencyKey="cat-640")


def _dead(stage: Stage) -> None:
    task = stage.leased(maxAttempts=1)
    stage.send("POST", f"/tasks/{task}/nack", {"reason": "the bank is closed"})


def _undelivered(stage: Stage) -> None:
    stage.undelivered(NO_OWNER)


def _waiting(stage: Stage) -> None:
    stage.prepare("ready")


# Causes of problems that the page's own commands do not cause.
_TROUBLES: Mapping[str, Callable[[Stage], None]] = {
    "401 unauthorized": _waiting,
    "409 idempotency-conflict": _keyed,
    "A task waits and nobody takes it": _waiting,
    "A worker gets nothing": _waiting,
    "A task was done twice": _done_twice,
    "409 lease-lost": _leased_again,
    "A task is a dead letter": _dead,
    "A webhook does not come": _undelivered,
}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Run a broker without any of the problems."""
    with LocalBroker(tmp_path / "broker", settings=_SETTINGS) as broker:
        yield Stage(broker)


@pytest.mark.needs("curl")
@pytest.mark.parametrize("section", _STEPS)
def test_a_trouble_shows_as_the_page_says(section: str, stage: Stage, tmp_path: Path) -> None:
    """The page's commands show it."""
    _TROUBLES.get(section, lambda _: None)(stage)
    known = "".join(f"{variable}={value}\n" for variable, value in stage.set.items())
    for step in _STEPS[section]:
        script = _PRELUDE + known + step.script
        said = shell(stage.broker, script, directory=tmp_path, exit_code=step.exit_code)

        assert [] == differing(step.shows, said)


def test_every_trouble_that_is_made_is_on_the_page() -> None:
    """Otherwise a problem renamed on the page would silently no longer be caused."""
    assert _TROUBLES.keys() <= _STEPS.keys()
