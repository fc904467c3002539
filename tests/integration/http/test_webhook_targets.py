"""Webhook targets: refusals of creates where private targets are not allowed."""

from __future__ import annotations

import pytest

from tests.integration.http.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSED = ("invalid webhook url", "invalid-webhook-url")


@pytest.mark.parametrize(
    "url",
    [
        *("http://localhost:8080/", "http://a.localhost/", "http://127.0.0.1/", "http://[::1]/"),
        *("http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/", "http://192.168.1.1/"),
        *("http://2130706433/", "http://0x7f.1/", "http://017700000001/", "http://0.0.0.0/"),
        *("http://[::ffff:10.0.0.1]/", "http://[fd00::1]/", "http://[64:ff9b::7f00:1]/"),
        *("http://user:word@1.1.1.1/", "http://1.1.1.1:0/", "http://a..b/"),
    ],
)
async def test_a_private_target_is_refused_singly_and_in_a_batch(strict: Client, url: str) -> None:
    """A batch refuses the item and takes the others."""
    bad = {"command": "hook", "payload": {}, "webhook": url}
    good = {"command": "hook", "payload": {}, "webhook": "https://1.1.1.1/done"}
    single = await strict.post("tasks", bad)
    batch = await strict.post("tasks/batch", {"tasks": [good, bad, good]})

    results = batch.json["results"]
    assert (400, *REFUSED) == (single.status, single.error, single.json["code"])
    assert isinstance(results, list)
    assert [
        (None, None),
        REFUSED,
        (None, None),
    ] == [(each.get("error"), each.get("code")) for each in results]
    assert good["webhook"] == results[0]["task"]["webhook"]


async def test_a_name_that_does_not_resolve_is_taken(strict: Client) -> None:
    """The target is checked again before the call; by RFC 6761 no host is named `invalid`."""
    answer = await strict.post(
        "tasks", {"command": "hook", "payload": {}, "webhook": "https://hooks.invalid/done"}
    )

    assert 202 == answer.status
    assert "https://hooks.invalid/done" == answer.json["webhook"]


async def test_a_private_target_is_refused_after_earlier_faults(strict: Client) -> None:
    """Its refusal precedes the faults that only this broker checks."""
    task = {"command": "c", "payload": {}, "webhook": "http://10.0.0.1/", "ttlSeconds": -1}

    first = await strict.post("tasks", {**task, "command": "a b"})
    then = await strict.post("tasks", task)
    last = await strict.post("tasks", {**task, "webhook": "http://1.1.1.1/"})

    assert ("invalid command", REFUSED[0]) == (first.error, then.error)
    assert "invalid 'ttlSeconds' (must be >= 0)" == last.error
