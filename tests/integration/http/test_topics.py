"""Topics: policies of queues, created, changed, read, deleted and enforced."""

from __future__ import annotations

import asyncio
import json

import pytest

from codeq_cluster.core.items import PAUSES_MAX, TOPICS_MAX
from tests.integration.http.client import Answer, Client
from tests.integration.http.operating import delete, pages, walked

pytestmark = pytest.mark.asyncio(loop_scope="session")

LABEL = "must be a DNS label with at most 63 characters"
FULL = {
    "priorityTiers": [9, 0, 5],
    "maxAttempts": 3,
    "deadLetterTopicRef": "graves",
    "retentionSeconds": 60,
    "maxConsumers": 7,
    "weight": 2,
    "timeoutSeconds": 30,
    "backoffPolicy": "linear",
    "backoffBaseSeconds": 2,
    "backoffMaxSeconds": 60,
}


async def put(node: Client, name: str, body: object) -> Answer:
    """Put a topic: bytes as they are, anything else as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await node.send("PUT", f"admin/topics/{name}", raw)


async def test_a_topic_is_made_kept_and_changed(node: Client) -> None:
    """The version counts only real changes."""
    made = await put(node, "tp-life", FULL)
    replayed = await put(node, "tp-life", FULL | {"priorityTiers": [0, 5, 9]})
    changed = await put(node, "tp-life", FULL | {"maxAttempts": 4})
    read = await node.get("admin/topics/tp-life")

    policy = FULL | {"priorityTiers": [0, 5, 9]}
    assert (201, 200, 200) == (made.status, replayed.status, changed.status)
    assert policy == {name: made.json[name] for name in FULL}
    assert policy == made.json["policy"]
    assert ("tp-life", "tp-life") == (made.json["name"], made.json["topicName"])
    assert ("acme.tp-life", "acme") == (made.json["topicId"], made.json["tenantId"])
    assert made.json == replayed.json
    assert (1, 2) == (made.json["version"], changed.json["version"])
    assert made.json["createdAt"] == changed.json["createdAt"]
    assert changed.json["updatedAt"] >= made.json["updatedAt"]
    assert 4 == changed.json["maxAttempts"]
    assert (200, changed.json) == (read.status, read.json)


async def test_fields_that_a_topic_omits_have_the_brokers_defaults(node: Client) -> None:
    """Null counts as absent, and a second version does not keep fields of the first."""
    await put(node, "tp-absent", FULL)
    changed = await put(node, "tp-absent", {"maxAttempts": None, "MAXCONSUMERS": 2})

    assert 200 == changed.status
    assert {"maxConsumers": 2, "weight": 1} == changed.json["policy"]


async def test_a_topic_governs_its_queue_from_its_answer_on(node: Client) -> None:
    """Attempts and consumers are limited until the topic is deleted."""
    await put(node, "tp-governs", {"maxAttempts": 2, "maxConsumers": 1})
    task_id = await node.create("TP-governs")
    await node.create("tp-governs")
    await node.claim("tp-governs")
    second = await node.post("tasks/claim", {"commands": ["tp-governs"]})
    await delete(node, "admin/topics/tp-governs?deletionPolicy=Delete")

    assert 2 == (await node.get(f"tasks/{task_id}")).json["maxAttempts"]
    assert 204 == second.status
    assert "IN_PROGRESS" == (await node.claim("tp-governs"))["status"]


async def test_a_task_s_time_limit_and_backoff_come_before_its_topic_s(node: Client) -> None:
    """A topic's time limit is also the upper bound; of the backoff each field counts on its own."""
    await put(
        node,
        "tp-handling",
        {"timeoutSeconds": 60, "backoffPolicy": "fixed", "backoffBaseSeconds": 100},
    )
    plain, own, longer = [
        await node.create("tp-handling", **said)
        for said in ({}, {"timeoutSeconds": 9, "backoffBaseSeconds": 70}, {"timeoutSeconds": 90})
    ]
    claimed = (await node.post("tasks/claim/batch", {"commands": ["tp-handling"], "count": 3})).json
    limits = {task["id"]: task["timeoutSeconds"] for task in claimed["tasks"]}
    delays = [
        (await node.post(f"tasks/{task_id}/nack", {})).json["delaySeconds"]
        for task_id in (plain, own)
    ]

    assert {plain: 60, own: 9, longer: 60} == limits
    assert [100, 70] == delays


async def test_tiers_govern_the_creates_of_their_queue(node: Client) -> None:
    """Priorities are checked after they are clamped to 0 to 9; a refusal names the tiers."""
    await put(node, "tp-tiers", {"priorityTiers": [5, 1, 10]})

    async def made(**fields: object) -> Answer:
        return await node.post("tasks", {"command": "TP-tiers", "payload": 1} | fields)

    absent, between = await made(), await made(priority=2)
    taken = [await made(priority=priority) for priority in (1, 5, 9, 10, 99)]
    items = [
        {"command": "tp-tiers", "payload": 1, "priority": priority} for priority in (1, 0, 5, -3)
    ]
    batch = await node.post("tasks/batch", {"tasks": items})
    results = batch.json["results"]
    await put(node, "tp-tiers", {})
    free = await made()

    text = (
        "invalid 'priority' (must be one of 1, 5, 10, the priorityTiers of its topic; "
        "0 when absent)"
    )
    assert [(400, text)] * 2 == [(each.status, each.error) for each in (absent, between)]
    assert {"invalid-priority"} == {absent.json["code"], between.json["code"]}
    assert [202] * 6 == [each.status for each in (*taken, free)]
    assert 200 == batch.status
    assert isinstance(results, list)
    assert [None, text, None, text] == [each.get("error") for each in results]


async def test_a_deletion_of_a_topic_must_be_explicit(node: Client) -> None:
    """A deletion must be explicit, and can be repeated."""
    await put(node, "tp-delete", {})
    unsaid = await delete(node, "admin/topics/tp-delete")
    otherwise = await delete(node, "admin/topics/tp-delete?deletionPolicy=delete")
    there = await node.get("admin/topics/tp-delete")
    deleted = [await delete(node, "admin/topics/tp-delete?deletionPolicy=Delete") for _ in range(2)]
    gone = await node.get("admin/topics/tp-delete")
    again = await put(node, "tp-delete", {})

    told = "deletionPolicy=Delete is required"
    assert (400, told, told) == (unsaid.status, unsaid.error, otherwise.error)
    assert 200 == there.status
    assert [(204, b"")] * 2 == [(each.status, each.body) for each in deleted]
    assert (404, 'queue topic "acme.tp-delete" not found') == (gone.status, gone.error)
    assert (201, 1) == (again.status, again.json["version"])


async def test_topics_are_listed_page_by_page(node: Client) -> None:
    """The list is sorted by name and has each topic once, while others are created."""
    lister = Client(node.port, "topics")
    names = ["a", "b.b", "C", "d:d", "e_e"]
    for name in names:
        await put(lister, name, {})
    met = []
    async for page in pages(lister, "admin/topics?limit=2"):
        met += [each["name"] for each in page["topics"]]
        await put(lister, "0-before", {})
    everything = await walked(lister, "admin/topics", "topics")

    assert names == met
    assert ["0-before", *names] == [each["name"] for each in everything]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"priorityTiers": []}, "priorityTiers", "must contain between 1 and 10 priorities"),
        (
            {"priorityTiers": list(range(11))},
            "priorityTiers",
            "must contain between 1 and 10 priorities",
        ),
        (
            {"priorityTiers": [11]},
            "priorityTiers",
            "priorities must be integers from 0 through 10",
        ),
        (
            {"priorityTiers": [-1]},
            "priorityTiers",
            "priorities must be integers from 0 through 10",
        ),
        ({"priorityTiers": [1, 1]}, "priorityTiers", "priorities must be unique"),
        ({"maxAttempts": 0}, "maxAttempts", "must be between 1 and 100"),
        ({"maxAttempts": 101}, "maxAttempts", "must be between 1 and 100"),
        ({"maxAttempts": 10**30}, "maxAttempts", "must be between 1 and 100"),
        ({"deadLetterTopicRef": ""}, "deadLetterTopicRef", LABEL),
        ({"deadLetterTopicRef": "A"}, "deadLetterTopicRef", LABEL),
        ({"deadLetterTopicRef": "-a"}, "deadLetterTopicRef", LABEL),
        ({"deadLetterTopicRef": "a-"}, "deadLetterTopicRef", LABEL),
        ({"deadLetterTopicRef": "a\n"}, "deadLetterTopicRef", LABEL),
        ({"deadLetterTopicRef": "a" * 64}, "deadLetterTopicRef", LABEL),
        ({"deadLetterTopicRef": "tp-bad"}, "deadLetterTopicRef", "must differ from topicName"),
        ({"retentionSeconds": -1}, "retentionSeconds", "must be between 0 and 2147483647"),
        ({"retentionSeconds": 2**31}, "retentionSeconds", "must be between 0 and 2147483647"),
        ({"maxConsumers": -1}, "maxConsumers", "must be between 0 and 10000"),
        ({"maxConsumers": 10_001}, "maxConsumers", "must be between 0 and 10000"),
        ({"weight": 0}, "weight", "must be between 1 and 100"),
        ({"weight": 101}, "weight", "must be between 1 and 100"),
        ({"timeoutSeconds": 0}, "timeoutSeconds", "must be between 1 and 31622400"),
        ({"backoffBaseSeconds": -1}, "backoffBaseSeconds", "must be between 1 and 31622400"),
        ({"backoffMaxSeconds": 10**9}, "backoffMaxSeconds", "must be between 1 and 31622400"),
        (
            {"backoffPolicy": "slower"},
            "backoffPolicy",
            "must be one of fixed, linear, exponential, exp_equal_jitter, exp_full_jitter",
        ),
        ({"owner": "me"}, "owner", "unknown field"),
        ({"maxAttempts": 3, "version": 1}, "version", "unknown field"),
    ],
)
async def test_a_policy_out_of_bounds_is_refused_by_its_field(
    node: Client, body: dict[str, object], field: str, message: str
) -> None:
    """The refusal has the reference's words, and nothing is created."""
    answer = await put(node, "TP-bad", body)

    assert (422, f"invalid {field}: {message}") == (answer.status, answer.error)
    assert (field, "invalid-field") == (answer.json["field"], answer.json["code"])
    assert 404 == (await node.get("admin/topics/tp-bad")).status


@pytest.mark.parametrize(
    "body",
    [
        {"priorityTiers": list(range(1, 11))},
        {"maxAttempts": 1, "weight": 1},
        {"maxAttempts": 100, "weight": 100},
        {"deadLetterTopicRef": "a" * 63},
        {"deadLetterTopicRef": "0"},
        {"retentionSeconds": 0, "maxConsumers": 0},
        {"timeoutSeconds": 1, "backoffBaseSeconds": 1, "backoffMaxSeconds": 1},
        {"timeoutSeconds": 31_622_400, "backoffPolicy": "fixed"},
        {"retentionSeconds": 2**31 - 1, "maxConsumers": 10_000},
    ],
)
async def test_a_policy_at_its_bounds_is_taken(node: Client, body: dict[str, object]) -> None:
    """Every bound is inclusive."""
    assert (await put(node, "tp-edges", body)).status in (200, 201)
    await delete(node, "admin/topics/tp-edges?deletionPolicy=Delete")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b"{", b"nonsense", b'{"maxAttempts":"3"}'),
        *(b'{"maxAttempts":1.5}', b'{"priorityTiers":5}', b'{"priorityTiers":["1"]}'),
        *(b'{"deadLetterTopicRef":5}', b'{"x":"\xff"}', b"[" * 100_000),
    ],
)
async def test_a_body_that_is_no_policy_is_refused(node: Client, body: bytes) -> None:
    """The body must be an object with fields of the right types."""
    answer = await put(node, "tp-body", body)

    assert (400, "invalid request body") == (answer.status, answer.error)


@pytest.mark.parametrize("name", ["a%2Fb", "a%20b", "%00", "x" * 129, "%F0%9F%92%A9"])
async def test_an_invalid_command_has_no_topic(node: Client, name: str) -> None:
    """Every route of topics refuses it."""
    answers = [
        await put(node, name, {}),
        await node.get(f"admin/topics/{name}"),
        await delete(node, f"admin/topics/{name}?deletionPolicy=Delete"),
    ]

    text = "invalid topicName: must be a command: 1 to 128 of A-Za-z0-9._:-"
    assert [(422, text)] * 3 == [(each.status, each.error) for each in answers]


@pytest.mark.parametrize("name", ["%2E", "%2E%2E"])
async def test_no_queue_is_made_that_no_path_can_name(node: Client, name: str) -> None:
    """A client would resolve `.` and `..` in a path; one that exists can still be asked for."""
    made = await put(node, name, {})
    command = name.replace("%2E", ".")
    created = await node.post("tasks", {"command": command, "payload": {}})

    assert (422, "topicName") == (made.status, made.json["field"])
    assert (400, "invalid-command") == (created.status, created.json["code"])
    assert 404 == (await node.get(f"admin/topics/{name}")).status


async def test_a_tenant_has_so_many_topics_and_pauses_and_no_more(node: Client) -> None:
    """Existing ones can be changed, and a deletion makes room; each tenant has its own bound."""

    async def each_of(verb: str, path: str, numbers: range) -> list[Answer]:
        async def one(number: int) -> Answer:
            return await node.send(verb, f"admin/{path.format(number)}", b"{}", token="bounded")

        return [
            answer
            for start in range(numbers.start, numbers.stop, 100)
            for answer in await asyncio.gather(
                *map(one, range(start, min(start + 100, numbers.stop)))
            )
        ]

    topics = await each_of("PUT", "topics/t-{}", range(TOPICS_MAX))
    pauses = await each_of("POST", "queues/q-{}/pause", range(PAUSES_MAX))
    [topic] = await each_of("PUT", "topics/t-{}", range(TOPICS_MAX, TOPICS_MAX + 1))
    [pause] = await each_of("POST", "queues/q-{}/pause", range(PAUSES_MAX, PAUSES_MAX + 1))
    again = await each_of("PUT", "topics/t-{}", range(1))
    await delete(node, "admin/topics/t-7?deletionPolicy=Delete", token="bounded")
    room = await each_of("PUT", "topics/t-{}", range(TOPICS_MAX, TOPICS_MAX + 1))

    assert {201} == {answer.status for answer in topics}
    assert {200} == {answer.status for answer in pauses}
    assert (409, "too many topics (at most 1000)") == (topic.status, topic.error)
    assert (409, "too many paused queues (at most 1000)") == (pause.status, pause.error)
    assert {"too-many"} == {topic.json["code"], pause.json["code"]}
    assert [200, 201] == [answer.status for answer in (*again, *room)]
