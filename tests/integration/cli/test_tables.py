"""Tables: lists and errors in a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.testing.broker import LocalBroker
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


def test_a_person_is_told_which_cluster_is_asked_by_default(
    variables: Mapping[str, str],
) -> None:
    """Without a flag, a variable or a profile, the development cluster and its token are named."""
    default = {name: value for name, value in variables.items() if name[:10] != "CODEQ_BASE"}
    default["CODEQ_TOKEN"] = ""
    shown = []
    for environment in (default, variables):
        with run("queue", "ls", environment=environment) as terminal:
            shown.append(" ".join(terminal.ended()[1].split()))

    assert "with the development token; --url or codeq-cluster init names another" in shown[0]
    assert "names another" not in shown[1]
