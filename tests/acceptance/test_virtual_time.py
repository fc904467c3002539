"""Virtual time: a node whose clock moves on request, as programs in any language test with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from codeq_cluster.cli.main import main
from tests.acceptance.runbooks import blocks
from tests.acceptance.test_commands import bash, interrupted, running
from tests.harness.commands import command
from tests.harness.ports import free_port_base
from tests.integration.docs.pages import DOCS, differing


def _page(url: str, directory: Path) -> list[tuple[str, list[str], str]]:
    """Run the page's commands against a node; return each section, what it shows and has said."""
    prelude, *rest = blocks((DOCS / "virtual-time.md").read_text())[1:]
    assert "prelude" == prelude.marks
    assert ["run", "shows"] * (len(rest) // 2) == [each.marks for each in rest]
    script = prelude.body.replace("http://127.0.0.1:8080", url)
    return [
        (run.section, shows.body.splitlines(), bash(f"cd {directory}\n{script}{run.body}"))
        for run, shows in zip(rest[::2], rest[1::2], strict=True)
    ]


@pytest.mark.needs("curl")
async def test_the_page_works_and_its_data_never_serves_real_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A month, a lease and a wait pass in requests of curl; then no command serves the data."""
    directory, base = tmp_path / "dev", str(free_port_base(1))
    url, where = f"http://127.0.0.1:{base}", ("--data", str(directory), "--port-base", base)
    async with running(directory, "--virtual-time", "--port-base", base) as (server, said):
        ready = said()
        ran = await asyncio.to_thread(_page, url, tmp_path)
        assert 0 == await interrupted(server)

    assert "time   virtual" in ready
    assert 3 == len(ran)
    assert [] == [(section, text) for section, shows, text in ran if differing(shows, text)]

    config = directory / "n1" / "node.yaml"
    ended = await command("node", "--config", config, within_s=60)
    code = await asyncio.to_thread(main, ["dev", "--nodes", "1", *where])
    for ended_with, said_last in ((ended.code, ended.err), (code, capsys.readouterr().err)):
        assert 1 == ended_with
        assert "has served virtual time and never serves real time" in said_last
