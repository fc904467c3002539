"""Tables: lists and errors in a terminal of 80 columns."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from codeq_cluster.testing.broker import LocalBroker
from tests.harness.ports import dead_url
from tests.integration.cli.terminal import run


def test_an_id_can_be_copied_from_a_narrow_terminal(
    broker: LocalBroker, variables: Mapping[str, str]
) -> None:
    """The id stays whole on one line, and so do the words beside it."""
    with broker.sync_client() as client:
        made = client.create("listed-in-a-narrow-terminal", 1)
    asked = ("task", "list", "--queue", made.command)
    with run(*asked, environment=variables) as terminal:
        code, shown = terminal.ended()

    assert 0 == code
    assert max(len(line) for line in shown.splitlines()) <= 80 + len("\x1b[1m\x1b[0m")
    assert made.id in shown
    assert f"command {made.command}" in shown


def test_a_usage_error_breaks_lines_between_words(variables: Mapping[str, str]) -> None:
    """The line with the verbs is wider than the terminal, and is broken between words."""
    with run("queue", "destroy", environment=variables) as terminal:
        code, shown = terminal.ended()

    assert 2 == code
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "resume, purge; see codeq-cluster queue --help" in " ".join(shown.split())


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "ls"),
        ("status",),
        ("doctor",),
        (
            "worker",
            "start",
            "--commands",
            "never-made",
            "--handler",
            "true",
            "--give-up-seconds",
            "0",
        ),
    ],
)
def test_a_person_is_told_which_cluster_and_token_are_taken_by_default(
    variables: Mapping[str, str], words: tuple[str, ...]
) -> None:
    """Without a flag, a variable or a profile, the development cluster and its token are named."""
    nobody = {"CODEQ_BASE_URL": dead_url("node")}  # A worker would work until it is stopped.
    shown = []
    for named in ({"CODEQ_TOKEN": "", "CODEQ_BASE_URL": ""}, {"CODEQ_TOKEN": ""} | nobody, nobody):
        with run(*words, environment={**variables, **named}) as terminal:
            if not named["CODEQ_BASE_URL"]:
                terminal.shows("names another")
                terminal.signal(signal.SIGINT)
            shown.append(" ".join(terminal.ended()[1].split()))

    assert "with the development token; --url or codeq-cluster init names another" in shown[0]
    assert "with the development token; --token or codeq-cluster init names another" in shown[1]
    assert "names another" not in shown[2]
