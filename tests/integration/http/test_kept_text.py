"""Kept text: JSON passes through the broker unchanged."""

from __future__ import annotations

import json

import pytest

from tests.integration.http.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Neither a float nor a 64-bit integer holds these numbers, and no encoder writes them like this.
TEXT = '{"z":12345678901234567890123,"a":0.1000000000000000000001,  "n":1E+2,"e":{},"s":"\\u00fc/"}'


async def test_a_payload_and_a_result_come_back_as_they_were_written(node: Client) -> None:
    """Digits of numbers, the order of keys, spaces and escapes are kept."""
    created = await node.post("tasks", b'{"command":"kept","payload":%b}' % TEXT.encode())
    claimed = await node.claim("kept")
    task_id = created.json["id"]
    done = await node.post(
        f"tasks/{task_id}/result", b'{"status":"COMPLETED","result":%b}' % TEXT.encode()
    )
    read = await node.get(f"tasks/{task_id}/result")

    assert created.json["payload"] == claimed["payload"] == TEXT
    assert done.status == read.status == 200
    assert f'"result":{TEXT}'.encode() in done.body
    assert f'"result":{TEXT}'.encode() in read.body
    task = read.json["task"]
    assert isinstance(task, dict)
    assert TEXT == task["payload"]


async def test_a_batch_keeps_the_text_of_each_item(node: Client) -> None:
    """Each item of a batch keeps its text."""
    item = b'{"command":"kept-batch","payload":%b}' % TEXT.encode()
    made = await node.post("tasks/batch", b'{"tasks":[%b,%b]}' % (item, item))
    results = made.json["results"]
    assert isinstance(results, list)
    claimed = (await node.post("tasks/claim/batch", {"count": 2, "commands": ["kept-batch"]})).json
    tasks = claimed["tasks"]
    assert isinstance(tasks, list)

    assert [TEXT, TEXT] == [result["task"]["payload"] for result in results]
    assert [TEXT, TEXT] == [task["payload"] for task in tasks]


@pytest.mark.parametrize("text", ['{"a":1}', "[]", '["x",null]', '""', '"t"', "0", "1.5", "true"])
async def test_any_json_is_a_payload_and_a_result(node: Client, text: str) -> None:
    """Any JSON value is accepted, while codeQ only accepts objects as results."""
    made = await node.post("tasks", b'{"command":"any","payload":%b}' % text.encode())
    claimed = await node.claim("any")
    path = f"tasks/{made.json['id']}/result"
    done = await node.post(path, b'{"status":"COMPLETED","result":%b}' % text.encode())
    read = await node.get(path)

    assert text == claimed["payload"]
    assert f'"result":{text}'.encode() in done.body
    assert f'"result":{text}'.encode() in read.body


async def test_an_empty_object_is_a_payload_and_a_result(node: Client) -> None:
    """An empty object is not turned into a missing field, which clients read unchecked."""
    task_id = await node.create("empty", payload={})
    claimed = await node.claim("empty")
    done = await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})

    assert "{}" == claimed["payload"]
    assert {} == json.loads(done.body)["result"]
