"""Init: questions on a terminal, which never shows a token."""

from __future__ import annotations

import termios
from collections.abc import Mapping

from codeq_cluster.cli.support import profiles
from codeq_cluster.testing.broker import LocalBroker
from tests.harness.waiting import until
from tests.integration.cli.terminal import WITHIN_S, Terminal, run

_LOCAL = 3


async def _type_unseen(terminal: Terminal, question: str, answer: str) -> None:
    """Answer a question once the terminal has stopped echoing."""
    terminal.shows(question)

    async def unseen() -> bool:
        return not terminal.modes[_LOCAL] & termios.ECHO

    await until(unseen, within_s=WITHIN_S, what="a terminal that shows nothing typed")
    terminal.type(f"{answer}\n")


async def test_init_asks_for_what_it_needs_and_shows_no_token(
    broker: LocalBroker, variables: Mapping[str, str]
) -> None:
    """An invalid address is asked for again; an empty answer stores nothing."""
    with run("init", environment=variables) as terminal:
        terminal.shows("Base URL")
        terminal.type("ftp://h\n")
        terminal.shows("must be")
        terminal.type(f"{broker.url}\n")
        await _type_unseen(terminal, "Token for everything", broker.token)
        await _type_unseen(terminal, "Producer token", "")
        await _type_unseen(terminal, "Worker token", "of-a-worker")
        await _type_unseen(terminal, "Operator token", "")
        code, shown = terminal.ended()
    kept = profiles.read()
    profile = kept.get(kept.current)

    assert 0 == code
    assert (broker.url, broker.token) == (profile.base_url, profile.token)
    assert ("", "of-a-worker") == (profile.producer_token, profile.worker_token)
    assert "answers and takes the token" in " ".join(shown.split())
    assert broker.token not in shown
    assert "of-a-worker" not in shown
