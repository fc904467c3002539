"""The HTTP reference: a real broker answers every request on the page with success."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from codeq_cluster.codec.arrivals import Arrivals, encode_arrivals
from codeq_cluster.testing.broker import LocalBroker
from docs.tools.examples import ARTIFACT, EXAMPLES, Example
from docs.tools.http import curl, document
from tests.integration.docs.pages import page, shell
from tests.integration.docs.stage import Stage

_BLOCKS = page("http.md")
_PRELUDE = next(block.body for block in _BLOCKS if block.marks == "prelude")
_OPERATIONS = [
    (curl(method.upper(), path, operation), operation)
    for path, methods in document()["paths"].items()
    for method, operation in methods.items()
]
# These two requests come last, because they end objects that the others need.
_LAST = ("subscriptions_unsubscribe", "deliveries_replay")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Run a broker with artifacts, backups and callbacks, and one object of each kind."""
    directory = tmp_path_factory.mktemp("broker")
    settings = {
        "artifacts": {"provider": "local", "directory": str(directory / "artifacts")},
        "backup": {"directory": str(directory / "backups")},
        "resultWebhookMaxAttempts": 1,
    }
    with LocalBroker(directory, settings=settings) as broker:
        stage = Stage(broker)
        stage.make_the_rest()
        yield stage


@pytest.mark.needs("curl")
def test_every_request_of_the_page_succeeds(stage: Stage, tmp_path: Path) -> None:
    """The status is the first one on the page, and the request is the text that a reader copies."""
    (tmp_path / ARTIFACT).write_bytes(b"a picture")
    (tmp_path / "part.cbor").write_bytes(encode_arrivals(Arrivals()))
    answered = {}
    for command, operation in sorted(_OPERATIONS, key=lambda each: each[1]["operationId"] in _LAST):
        name = operation["operationId"]
        stage.prepare(EXAMPLES.get(name, Example()).task)
        known = "".join(f"{variable}={value}\n" for variable, value in stage.set.items())
        # The status is printed on its own line after the answer.
        shown = f'{_PRELUDE}{known}curl() {{ command curl -w "\\n%{{http_code}}" "$@"; }}\n'
        said = shell(stage.broker, shown + command, directory=tmp_path)
        answered[name] = said.splitlines()[-1]
        expected = next(iter(operation["responses"]))

        assert expected == answered[name], f"{command}\n{said}"

    assert len(_OPERATIONS) == len(answered)


def test_every_request_of_the_page_is_run() -> None:
    """The test above runs exactly the fenced requests of the page, each once."""
    fenced = [block.body.rstrip("\n") for block in _BLOCKS if block.marks == "run"]

    assert sorted(command for command, _ in _OPERATIONS) == sorted(fenced)
    assert EXAMPLES.keys() <= {operation["operationId"] for _, operation in _OPERATIONS}
    assert 0 == len([block for block in _BLOCKS if block.marks not in {"run", "prelude"}])
    assert re.search(r"dev-token", _PRELUDE)
