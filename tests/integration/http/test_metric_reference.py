"""The page of the metrics: it has exactly the metrics that a node shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.http.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
_ROW = re.compile(
    r"^\| `(?P<name>codeq_\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*) \| (?P<text>.*) \|$",
    re.MULTILINE,
)


async def test_the_page_has_every_metric_as_a_scrape_tells_it(node: Client) -> None:
    """Name, kind and help text agree, and so do the labels of metrics with a series."""
    task_id = await node.create("documented")
    await node.claim("documented")
    await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})
    scraped = (await node.get("/metrics")).body.decode()
    kinds = dict(re.findall(r"^# TYPE (codeq_\w+) (\w+)$", scraped, re.MULTILINE))
    exported = {
        (name, kinds[name], text)
        for name, text in re.findall(r"^# HELP (codeq_\w+) (.*)$", scraped, re.MULTILINE)
        # The library adds a creation time to each counter and histogram.
        if not (name.endswith("_created") and kinds[name] == "gauge")
    }
    rows = list(_ROW.finditer(_PAGE.read_text()))
    written = {(row["name"], row["kind"], row["text"]) for row in rows}
    wrong = [
        (row["name"], labels)
        for row in rows
        for labels in _labels(scraped, row["name"])
        if labels != set(re.findall(r"`(\w+)`", row["labels"]))
    ]

    assert written == exported
    assert [] == wrong


def _labels(scraped: str, name: str) -> list[set[str]]:
    """Return the labels of each series of a metric."""
    series = re.findall(
        rf"^{name}(?:_bucket|_sum|_count)?(?:\{{(.*)\}})? \S+$", scraped, re.MULTILINE
    )
    return [set(re.findall(r'(\w+)="', labels)) - {"le"} for labels in series]
