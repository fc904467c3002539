"""Bad input: every route answers in the contract's words, and the node stays unharmed."""

from __future__ import annotations

import json
import re

import pytest

from codeq_cluster.api.app import ROUTES as APP_ROUTES
from codeq_cluster.api.http.middleware import Route
from codeq_cluster.auth import Access
from codeq_cluster.core.backoff import POLICIES
from codeq_cluster.core.bounds import NUMBER_MAX
from tests.integration.http.client import BASE, OPERATOR, Answer, Client, read_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")

ID = "00000000-0000-4000-8000-000000000000"
BODY = "invalid body"
RESULT_BODY = "invalid request body"
NO_RESULT = "result required when status=COMPLETED"
NO_ERROR = "error required when status=FAILED"
TOO_LONG = "must be <= 43200"
RESULT = f"tasks/{ID}/result"
HEARTBEAT = f"tasks/{ID}/heartbeat"

ROUTES = {
    "tasks": BODY,
    "tasks/batch": BODY,
    "tasks/claim": BODY,
    "tasks/claim/batch": BODY,
    f"tasks/{ID}/heartbeat": BODY,
    f"tasks/{ID}/abandon": BODY,
    f"tasks/{ID}/nack": BODY,
    f"tasks/{ID}/reject": BODY,
    f"tasks/{ID}/result": RESULT_BODY,
    "tasks/batch/results": BODY,
    "tasks/batch/heartbeats": BODY,
    "workers/subscriptions": BODY,
    f"workers/subscriptions/{ID}/heartbeat": BODY,
    "admin/tasks/cleanup": BODY,
    "admin/queues/c/dlq/requeue": BODY,
    "admin/deliveries/replay": BODY,
    "admin/cluster/transfer": BODY,
    "admin/cluster/upgrade": BODY,
}
# Without a body these routes act on everything, change nothing, or name the missing part.
OPTIONAL = ("abandon", "reject", "subscriptions/", "cleanup", "requeue", "replay", "upgrade")
WRONG_TYPES: dict[str, list[dict[str, object]]] = {
    "tasks": [
        {"command": 1, "payload": 1},
        {"command": "c", "payload": 1, "priority": "1"},
        {"command": "c", "payload": 1, "priority": 1.5},
        {"command": "c", "payload": 1, "webhook": {}},
        {"command": "c", "payload": 1, "idempotencyKey": 7},
        {"command": "c", "payload": 1, "runAt": 5},
        {"command": "c", "payload": 1, "delaySeconds": "5"},
    ],
    "tasks/batch": [{"tasks": {}}, {"tasks": "x"}, {"tasks": 3}],
    "tasks/claim": [{"commands": "c"}, {"commands": [1]}, {"leaseSeconds": 1.0}],
    "tasks/claim/batch": [{"count": "1"}, {"count": 1.5}, {"count": 1, "commands": {}}],
    f"tasks/{ID}/heartbeat": [{"extendSeconds": "1"}, {"leaseToken": "7"}],
    f"tasks/{ID}/abandon": [{"leaseToken": []}],
    f"tasks/{ID}/nack": [{"delaySeconds": 0.5}, {"reason": 4}],
    f"tasks/{ID}/reject": [{"reason": 4}],
    f"tasks/{ID}/result": [
        {"status": 1, "result": {}},
        {"status": "COMPLETED", "result": {}, "artifacts": {}},
        {"status": "FAILED", "error": {}},
    ],
    "tasks/batch/results": [{"results": {}}, {"results": "x"}],
    "tasks/batch/heartbeats": [{"leases": {}}, {"leases": "x"}],
    "workers/subscriptions": [
        {"callbackUrl": {}},
        {"callbackUrl": "http://a/", "eventTypes": "c"},
        {"callbackUrl": "http://a/", "minIntervalSeconds": 0.5},
        {"callbackUrl": "http://a/", "groupId": 7},
    ],
    f"workers/subscriptions/{ID}/heartbeat": [{"ttlSeconds": "1"}],
    "admin/tasks/cleanup": [{"limit": 0.5}, {"before": 7}],
    "admin/queues/c/dlq/requeue": [{"ids": "x"}, {"dryRun": 1}, {"error": []}, {"limit": {}}],
    "admin/deliveries/replay": [{"ids": {}}, {"all": "yes"}],
    "admin/cluster/transfer": [{"shard": "0"}, {"shard": 0, "to": []}],
    "admin/cluster/upgrade": [{"level": "2"}, {"level": 1.5}, {"dryRun": 1}],
}
MISSING = [
    *("tasks", "tasks/batch", "tasks/claim/batch", "tasks/batch/results"),
    *("workers/subscriptions", "admin/cluster/transfer"),
]


def may(route: str) -> str:
    """Return a token that may call a route."""
    return OPERATOR if route.startswith("admin/cluster") else "acme"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b"{",
        b'{"a":1}}',
        b"[]",
        b"[{}]",
        b"7",
        b'"x"',
        b"\x00\x01",
        b'{"a":"\xff\xfe"}',
        b'{"\xc3":1}',
        b'{"payload":"\xed\xa0\x80","command":"c","status":"FAILED","error":"e"}',
        b'\xef\xbb\xbf{"command":"c","payload":1}',
    ],
)
async def test_a_body_that_is_not_a_json_object_is_refused(
    node: Client, route: str, body: bytes
) -> None:
    """The answer is the route's own text, for any bytes."""
    answer = await node.post(route, body, token=may(route))

    assert (400, ROUTES[route]) == (answer.status, answer.error)


@pytest.mark.parametrize("route", ROUTES)
async def test_bottomless_nesting_is_refused(node: Client, route: str) -> None:
    """Deep nesting is refused in used fields and in ignored ones."""
    deep = b"[" * 100_000 + b"]" * 100_000
    unused = await node.post(route, b'{"x":%b}' % deep, token=may(route))
    used = await node.post(route, b'{"command":"c","payload":%b}' % deep, token=may(route))

    assert (400, ROUTES[route]) == (unused.status, unused.error)
    assert (400, ROUTES[route]) == (used.status, used.error)


async def test_a_payload_may_nest_as_deep_as_the_limit(node: Client) -> None:
    """The limit, set to two hundred levels here, is exact for payloads and results.

    A refusal names it.
    """
    most = "[" * 200 + "]" * 200
    task_id = await node.create("deep", payload=json.loads(most))
    await node.claim("deep")
    refused = await node.post("tasks", b'{"command":"c","payload":[%b]}' % most.encode())
    result = b'{"status":"COMPLETED","result":[%b]}' % most.encode()
    refused_result = await node.post(f"tasks/{task_id}/result", result)

    assert (400, BODY) == (refused.status, refused.error)
    assert (400, RESULT_BODY) == (refused_result.status, refused_result.error)
    details = [each.json["detail"] for each in (refused, refused_result)]
    assert [
        f"{name}: nests deeper than 200 (limits.payloadDepthMax)" for name in ("payload", "result")
    ] == details


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if not any(each in route for each in OPTIONAL)]
)
async def test_a_missing_body_is_refused(node: Client, route: str) -> None:
    """Routes that must be told what to do refuse a missing body."""
    answer = await node.post(route, token=may(route))

    assert (400, ROUTES[route]) == (answer.status, answer.error)


@pytest.mark.parametrize("route", MISSING)
async def test_missing_fields_are_refused(node: Client, route: str) -> None:
    """An empty object lacks the fields that these routes require."""
    answer = await node.post(route, {}, token=may(route))

    assert (400, BODY) == (answer.status, answer.error)


@pytest.mark.parametrize(
    ("route", "body"), [(route, body) for route, bodies in WRONG_TYPES.items() for body in bodies]
)
async def test_a_field_of_another_type_is_refused(
    node: Client, route: str, body: dict[str, object]
) -> None:
    """A number is not a text, and a fraction is not an integer."""
    answer = await node.post(route, body, token=may(route))

    assert (400, ROUTES[route]) == (answer.status, answer.error)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_body_of_twelve_megabytes_is_refused_with_or_without_a_length(
    node: Client, route: str
) -> None:
    """The body is refused by its announced size or, without one, as soon as it is too long."""
    body = b'{"x":"' + b"y" * 12 * 2**20 + b'"}'
    told = await node.post(route, body, token=may(route))
    reader, writer = await node.connect()
    head = node.head("POST", route, 0, token=may(route)).replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    writer.write(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    untold = await read_answer(reader)

    assert told.status == untold.status == 413
    assert told.json["code"] == untold.json["code"] == "body-too-large"


@pytest.mark.parametrize(
    ("method", "path", "body", "text"),
    [
        ("POST", "tasks/{id}/heartbeat", {}, "not-found"),
        ("POST", "tasks/{id}/abandon", {}, "not-found"),
        ("POST", "tasks/{id}/nack", {}, "not-found"),
        ("POST", "tasks/{id}/reject", {}, "not-found"),
        ("POST", "tasks/{id}/result", {"status": "FAILED", "error": "e"}, "task not found"),
        ("POST", "tasks/{id}/cancel", {}, "not found"),
        ("GET", "tasks/{id}", None, "not found"),
        ("GET", "tasks/{id}/result", None, "task not found"),
        ("GET", "tasks/{id}/result?waitSeconds=5", None, "task not found"),
    ],
)
async def test_a_task_that_is_not_the_callers_does_not_exist(
    node: Client, method: str, path: str, body: object, text: str
) -> None:
    """Unknown ids, absurd ids and ids of other tenants get the same answer at once."""
    theirs = await Client(node.port, "other").create("theirs")
    raw = b"" if body is None else json.dumps(body).encode()
    for task_id in (ID, theirs, "x" * 3000, "a%2Fb", "..", "%00", "%F0%9F%92%A9", "a b%20c"[3:]):
        answer = await node.send(method, f"{BASE}/{path.format(id=task_id)}", raw)

        assert (404, text, task_id) == (answer.status, answer.error, task_id)


async def test_another_tenants_task_is_left_alone(node: Client) -> None:
    """Requests of another tenant do not change the task."""
    other = Client(node.port, "other")
    task_id = await other.create("mine")
    claimed = await other.claim("mine")
    for verb, body in (
        ("heartbeat", {}),
        ("abandon", {}),
        ("nack", {}),
        ("result", {"status": "FAILED", "error": "e"}),
        ("cancel", {}),
    ):
        answer = await node.post(f"tasks/{task_id}/{verb}", body)
        assert 404 == answer.status

    after = (await other.get(f"tasks/{task_id}")).json
    assert "IN_PROGRESS" == after["status"]
    assert claimed["leaseUntil"] == after["leaseUntil"]


@pytest.mark.parametrize("in_header", [True, False])
async def test_a_stale_lease_token_is_refused_everywhere_and_changes_nothing(
    node: Client, in_header: bool
) -> None:
    """After the task was returned and claimed again, the first lease is over."""
    task_id = await node.create("fenced")
    stale = (await node.claim("fenced"))["leaseToken"]
    await node.post(f"tasks/{task_id}/abandon")
    fresh = await node.claim("fenced")
    headers = {"X_CodeQ_Lease_Token": str(stale)} if in_header else {}
    token = {} if in_header else {"leaseToken": stale}
    for verb, body in (
        ("heartbeat", {}),
        ("abandon", {}),
        ("nack", {}),
        ("result", {"status": "COMPLETED", "result": {}}),
    ):
        answer = await node.post(f"tasks/{task_id}/{verb}", {**body, **token}, **headers)
        assert (409, "lease-lost") == (answer.status, answer.error)

    after = (await node.get(f"tasks/{task_id}")).json
    assert ("IN_PROGRESS", fresh["leaseUntil"]) == (after["status"], after["leaseUntil"])
    done = await node.post(
        f"tasks/{task_id}/result",
        {"status": "COMPLETED", "result": {}, "leaseToken": fresh["leaseToken"]},
    )
    assert 200 == done.status


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"priority": 10**30}, BODY),
        ({"maxAttempts": 10**30}, BODY),
        ({"delaySeconds": -(10**30)}, BODY),
        ({"maxAttempts": 1001}, "invalid 'maxAttempts' (must be <= 1000)"),
        ({"delaySeconds": 10**12}, "invalid 'delaySeconds' (must be <= 31622400)"),
        ({"ttlSeconds": 10**12}, "invalid 'ttlSeconds' (must be <= 31622400)"),
        ({"ttlSeconds": -1}, "invalid 'ttlSeconds' (must be >= 0)"),
        ({"timeoutSeconds": -1}, "invalid 'timeoutSeconds' (must be >= 0)"),
        ({"backoffMaxSeconds": 10**12}, "invalid 'backoffMaxSeconds' (must be <= 31622400)"),
        (
            {"backoffPolicy": "slower"},
            f"invalid 'backoffPolicy' (use {', '.join(POLICIES)})",
        ),
        (
            {"idempotencyKey": "é" * 129},
            "invalid 'idempotencyKey' (at most 256 bytes, and no NUL at its beginning)",
        ),
        ({"delaySeconds": -1}, "invalid 'delaySeconds' (must be >= 0)"),
        ({"runAt": "tomorrow"}, "invalid 'runAt' (use RFC3339)"),
        ({"runAt": "2024-01-01"}, "invalid 'runAt' (use RFC3339)"),
        ({"runAt": "2024-01-01T00:00:00"}, "invalid 'runAt' (use RFC3339)"),
        ({"runAt": "2024-13-01T00:00:00Z"}, "invalid 'runAt' (use RFC3339)"),
        ({"runAt": "9999-12-31T23:59:59-23:59"}, "invalid 'runAt' (use RFC3339)"),
        ({"command": ""}, "invalid command"),
        ({"command": "a b"}, "invalid command"),
        ({"command": "a/b"}, "invalid command"),
        ({"command": "c\n"}, "invalid command"),
        ({"command": "é"}, "invalid command"),
        ({"command": "c" * 129}, "invalid command"),
        ({"command": None}, BODY),
        ({"webhook": "ftp://host"}, "invalid webhook url"),
        ({"webhook": "https://"}, "invalid webhook url"),
        ({"webhook": "https://[::1"}, "invalid webhook url"),
        ({"webhook": "https://host:99999"}, "invalid webhook url"),
        ({"webhook": "https://host/\nX: y"}, "invalid webhook url"),
    ],
)
async def test_a_task_out_of_bounds_is_refused_singly_and_in_a_batch(
    node: Client, fields: dict[str, object], text: str
) -> None:
    """A batch refuses the item and takes the others."""
    bad = {"command": "bounds", "payload": {}, **fields}
    good = {"command": "bounds", "payload": {}}
    single = await node.post("tasks", bad)
    batch = await node.post("tasks/batch", {"tasks": [good, bad, good]})

    results = batch.json["results"]
    assert (400, text) == (single.status, single.error)
    assert isinstance(results, list)
    assert [None, text, None] == [result.get("error") for result in results]
    assert single.json["code"] == results[1]["code"]
    assert single.json.get("detail") == results[1].get("detail")


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("tasks", '{"command":"c"}', "payload is missing"),
        ("tasks", '{"payload":1}', "command is missing"),
        (
            "tasks",
            '{"command":"c","payload":cat}',
            "JSON is malformed: invalid character (byte 25)",
        ),
        (
            "tasks",
            '{"command":"c","payload":1,"maxAttempts":"3"}',
            "Expected `int | null`, got `str` - at `$.maxAttempts`",
        ),
        (
            "tasks",
            '{"command":"c","payload":1,"MaxAttempts":"3","unknown":1}',
            "Expected `int | null`, got `str` - at `$.maxAttempts`",
        ),
        (
            "tasks",
            '{"command":"a b","payload":1}',
            "use 1 to 128 of A-Za-z0-9._:-, other than . and ..",
        ),
        (
            "tasks",
            '{"command":"c","payload":1,"delaySeconds":9223372036854775808}',
            "delaySeconds: must fit into 64 bits",
        ),
        ("tasks/claim", "[]", "Expected `object`, got `array`"),
        (
            "tasks/claim",
            '{"waitSeconds":-9223372036854775809}',
            "waitSeconds: must fit into 64 bits",
        ),
        ("tasks/claim/batch", '{"count":0}', "count: must be 1 or more"),
        (
            "workers/subscriptions",
            '{"callbackUrl":"http://a/","ttlSeconds":9223372036854775808}',
            "ttlSeconds: must fit into 64 bits",
        ),
        (
            "workers/subscriptions",
            '{"callbackUrl":""}',
            "callbackUrl: is empty, or has another form",
        ),
        (HEARTBEAT, '{"leaseToken":9223372036854775808}', "leaseToken: must fit into 64 bits"),
        ("tasks/batch", '{"tasks":[]}', "tasks is missing or empty"),
        ("tasks/graph", '{"tasks":[]}', "tasks is missing or empty"),
        ("tasks/batch/results", "{}", "results is missing or empty"),
        ("tasks/batch/heartbeats", '{"leases":null}', "leases is missing or empty"),
        (RESULT, '{"status":"DONE","result":1}', "use COMPLETED or FAILED"),
        (HEARTBEAT, '{"progress":{"done":-1}}', f"done and total must be 0 to {NUMBER_MAX}"),
    ],
)
async def test_the_detail_says_what_is_wrong_in_a_request(
    node: Client, path: str, body: str, detail: str
) -> None:
    """The text of the error is the contract's and names no field."""
    answer = await node.post(path, body.encode(), token=may(path))

    assert (400, detail) == (answer.status, answer.json.get("detail"))


@pytest.mark.parametrize(
    ("route", "items", "item", "detail"),
    [
        ("tasks", "tasks", {"command": "c"}, "payload is missing"),
        (
            "tasks",
            "tasks",
            {"command": "c", "payload": 1, "tags": {"a:b": "c"}},
            "names must be 1 to 64 bytes without a colon",
        ),
        ("results", "results", {"taskId": ID, "status": "DONE"}, "use COMPLETED or FAILED"),
        (
            "heartbeats",
            "leases",
            {"id": ID, "progress": {"done": -1}},
            f"done and total must be 0 to {NUMBER_MAX}",
        ),
    ],
)
async def test_a_refused_item_of_a_batch_says_what_is_wrong(
    node: Client, route: str, items: str, item: dict[str, object], detail: str
) -> None:
    """The text of the error is the contract's and names no field, as that of a single request."""
    path = "tasks/batch" if route == "tasks" else f"tasks/batch/{route}"
    answer = await node.post(path, {items: [item]})
    [told] = next(iter(answer.json.values()))  # type: ignore[call-overload]

    assert (200, detail) == (answer.status, told["detail"])


async def test_the_first_fault_in_the_contracts_order_is_told(node: Client) -> None:
    """Body, runAt, delaySeconds, command, webhook: mending one fault uncovers the next."""
    faults: list[tuple[str, object, str]] = [
        ("payload", None, BODY),
        ("runAt", "x", "invalid 'runAt' (use RFC3339)"),
        ("delaySeconds", -1, "invalid 'delaySeconds' (must be >= 0)"),
        ("command", "a b", "invalid command"),
        ("webhook", "x", "invalid webhook url"),
    ]
    body: dict[str, object] = {name: value for name, value, _ in faults}
    mended = {"payload": 1, "runAt": None, "delaySeconds": 0, "command": "c", "webhook": None}
    told = []
    for name, _, _ in faults:
        told.append((await node.post("tasks", body)).error)
        body[name] = mended[name]

    assert [text for _, _, text in faults] == told
    assert 202 == (await node.post("tasks", body)).status


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"priority": 99}, {"priority": 9}),
        ({"priority": -5}, {"priority": None}),
        ({"maxAttempts": -1}, {"maxAttempts": 5}),
        ({"maxAttempts": 1000}, {"maxAttempts": 1000}),
        ({"runAt": "1901-01-01T00:00:00Z"}, {"lastKnownLocation": "PENDING_LIST"}),
        ({"runAt": "9999-12-31T23:59:59Z"}, {"runAt": "9999-12-31T23:59:59.000Z"}),
        (
            {"runAt": "1901-01-01T00:00:00Z", "delaySeconds": 60},
            {"lastKnownLocation": "PENDING_LIST"},
        ),
        ({"runAt": "", "webhook": "", "idempotencyKey": ""}, {"webhook": None, "runAt": None}),
        ({"delaySeconds": 31622400}, {"lastKnownLocation": "DELAYED_ZSET"}),
    ],
)
async def test_a_task_at_its_bounds_is_taken(
    node: Client, fields: dict[str, object], shown: dict[str, object]
) -> None:
    """Values at their bounds are accepted, and clamped where the contract says so."""
    answer = await node.post("tasks", {"command": "edge", "payload": 0, **fields})

    assert 202 == answer.status
    assert shown == {name: answer.json.get(name) for name in shown}


@pytest.mark.parametrize(
    ("route", "body", "status", "text"),
    [
        ("tasks/claim", {"leaseSeconds": 43201}, 400, f"invalid 'leaseSeconds' ({TOO_LONG})"),
        ("tasks/claim", {"leaseSeconds": 10**30}, 400, BODY),
        ("tasks/claim", {"waitSeconds": 10**30}, 400, BODY),
        ("tasks/claim", {"commands": ["a b"]}, 400, "invalid command"),
        ("tasks/claim/batch", {"count": 0}, 400, BODY),
        ("tasks/claim/batch", {"count": -1}, 400, BODY),
        ("tasks/claim/batch", {"count": 101}, 400, "count exceeds maximum of 100"),
        (HEARTBEAT, {"extendSeconds": 43201}, 400, f"invalid 'extendSeconds' ({TOO_LONG})"),
        (HEARTBEAT, {"leaseToken": 2**63}, 400, BODY),
        (f"tasks/{ID}/nack", {"delaySeconds": 10**30}, 400, BODY),
        (RESULT, {"status": "COMPLETED"}, 400, NO_RESULT),
        (RESULT, {"status": "COMPLETED", "result": None}, 400, NO_RESULT),
        (RESULT, {"status": "FAILED"}, 400, NO_ERROR),
        (RESULT, {"status": "FAILED", "error": " "}, 400, NO_ERROR),
        (RESULT, {"status": "completed", "result": {}}, 400, "invalid status"),
        (RESULT, {}, 400, "invalid status"),
        (
            RESULT,
            {"status": "FAILED", "error": "e", "artifacts": [{"contentBase64": "eA=="}]},
            400,
            "artifacts are not configured (set artifacts.provider to local or s3, or send a url)",
        ),
        ("tasks/batch", {"tasks": []}, 400, BODY),
        ("tasks/batch", {"tasks": [{}] * 101}, 400, "batch size exceeds maximum of 100"),
        ("tasks/batch/results", {"results": []}, 400, BODY),
        ("tasks/batch/results", {"results": [{}] * 101}, 400, "batch size exceeds maximum of 100"),
    ],
)  # fmt: skip
async def test_a_request_out_of_bounds_is_told_its_bound(
    node: Client, route: str, body: dict[str, object], status: int, text: str
) -> None:
    """The refusal names the bound, in the reference's words if it has any."""
    answer = await node.post(route, body, token=may(route))

    assert (status, text) == (answer.status, answer.error)


async def test_a_nack_waits_no_longer_than_the_back_off_may(node: Client) -> None:
    """A longer delay is shortened, and the answer has the shortened one."""
    task_id = await node.create("nacked")
    await node.claim("nacked")
    answer = await node.post(f"tasks/{task_id}/nack", {"delaySeconds": 10**9, "reason": "r" * 9999})

    assert {"status": "requeued", "delaySeconds": 900} == answer.json


async def test_abandon_needs_no_body(node: Client) -> None:
    """Clients send nothing, null or an empty object."""
    for body in (b"", b"null", b"{}", b" "):
        task_id = await node.create("abandoned")
        claimed = await node.claim("abandoned")
        answer = await node.post(f"tasks/{task_id}/abandon", body)
        await node.post(f"tasks/{task_id}/cancel")

        assert task_id == claimed["id"]
        assert (200, {"status": "requeued"}) == (answer.status, answer.json)


async def test_a_worker_that_does_not_own_the_lease_is_refused(node: Client) -> None:
    """Having the same tenant is not enough."""
    mate = Client(node.port, "mate")
    task_id = await node.create("owned")
    await node.claim("owned")
    for verb, body in (
        ("heartbeat", {}),
        ("abandon", {}),
        ("nack", {}),
        ("result", {"status": "COMPLETED", "result": {}}),
    ):
        answer = await mate.post(f"tasks/{task_id}/{verb}", body)
        assert (403, "not-owner") == (answer.status, answer.error)


async def test_results_of_a_batch_are_judged_one_by_one(node: Client) -> None:
    """The order is kept, and a task named twice is ended once."""
    task_id = await node.create("batched")
    await node.claim("batched")
    good = {"taskId": task_id, "status": "COMPLETED", "result": {"n": 1}}
    answer = await node.post(
        "tasks/batch/results",
        {
            "results": [
                {"taskId": ID, "status": "FAILED", "error": "e"},
                {**good, "status": "odd"},
                good,
                good,
                {"status": "FAILED", "error": "e"},
                7,
                {"taskId": "a/b", "status": "FAILED", "error": "e"},
            ]
        },
    )

    results = answer.json["results"]
    assert isinstance(results, list)
    assert [
        (ID, "task not found"),
        (task_id, "invalid status"),
        (task_id, None),
        (task_id, "not-in-progress"),
        ("", "task not found"),
        ("", RESULT_BODY),
        ("a/b", "task not found"),
    ] == [(result["taskId"], result.get("error")) for result in results]
    assert {"n": 1} == results[2]["result"]["result"]


async def test_an_idempotency_key_replays_its_task_and_no_other(node: Client) -> None:
    """The same create returns the same task; another one with the same key is a conflict."""
    body = {"command": "once", "payload": {"n": 1}, "idempotencyKey": "said-again"}
    first = await node.post("tasks", body)
    again = await node.post("tasks", body)
    other = await node.post("tasks", {**body, "payload": {"n": 2}})
    elsewhere = await Client(node.port, "other").post("tasks", body)

    assert "x-codeq-idempotent-replay" not in first.headers
    assert "true" == again.headers["x-codeq-idempotent-replay"]
    assert (202, first.json["id"]) == (again.status, again.json["id"])
    assert (409, "idempotency conflict") == (other.status, other.error)
    assert elsewhere.json["id"] != first.json["id"]


@pytest.mark.parametrize("route", APP_ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_no_route_answers_a_stale_read_with_another(node: Client, route: Route) -> None:
    """A route offers stale reads and states their age, or refuses them and does nothing."""
    path = re.sub(r"{\w+}", "00000000-0000-4000-8000-000000000000", route.path)
    token = OPERATOR if route.access is Access.OPERATOR else "acme"
    refused = await node.send(route.method, f"{path}?consistency=odd", b"", token=token)
    stale = await node.send(route.method, f"{path}?consistency=stale", b"", token=token)

    assert 400 == refused.status
    assert (stale.status != 400) == route.stale
    if route.method != "HEAD" and not route.stale:
        told = ("invalid 'consistency' (this route has no stale reads)", "invalid-consistency")
        assert told == (stale.error, stale.json["code"])


async def test_a_route_without_stale_reads_can_be_asked_for_what_it_has(node: Client) -> None:
    """Asking for the consistency that the route has anyway is allowed."""
    answers = [await node.get(f"admin/queues?{said}=") for said in ("consistency", "limit")]
    answers.append(await node.get("admin/queues?consistency=linearizable"))

    assert [200] * 3 == [answer.status for answer in answers]


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("waitSeconds=x", 400, "invalid 'waitSeconds' (use an integer)"),
        ("waitSeconds=-5", 404, "result not found"),
        ("waitSeconds=", 404, "result not found"),
        ("waitSeconds=0", 404, "result not found"),
        ("consistency=odd", 400, "invalid 'consistency' (use linearizable or stale)"),
        ("consistency=stale", 404, "result not found"),
        ("%E2%82%AC=%00&&&=", 404, "result not found"),
    ],
)
async def test_a_query_that_says_nothing_sensible_is_refused(
    node: Client, query: str, status: int, text: str
) -> None:
    """Only values of known parameters are refused; unknown parameters are ignored."""
    task_id = await node.create("queried")
    answer = await node.get(f"tasks/{task_id}/result?{query}")

    assert (status, text) == (answer.status, answer.error)


@pytest.mark.parametrize(
    ("token", "path", "status", "text"),
    [
        ("", "tasks", 401, "missing Authorization header"),
        ("wrong", "tasks", 401, "invalid token"),
        ("a b", "tasks", 401, "invalid Authorization format"),
        ("homeless", "tasks", 403, "invalid tenant claims"),
        ("narrow", HEARTBEAT, 403, "missing scope"),
        ("narrow", RESULT, 403, "missing scope"),
    ],
)
async def test_a_forbidden_caller_is_refused_before_its_body_is_read(
    node: Client, token: str, path: str, status: int, text: str
) -> None:
    """The answer is about access although the body is invalid, because it is not read."""
    answer = await node.post(path, b"nonsense", token=token)

    assert (status, text) == (answer.status, answer.error)


async def test_reads_need_a_tenant_and_admin_routes_an_admin(node: Client) -> None:
    """Any token may read, but not without a tenant."""
    homeless = await node.get(f"tasks/{ID}", token="homeless")
    narrow = await node.get("admin/queues", token="narrow")
    reader = await node.get("raft/status", token="narrow")

    assert (403, "invalid tenant claims") == (homeless.status, homeless.error)
    assert (401, "unauthorized. Admin only") == (narrow.status, narrow.error)
    assert 200 == reader.status


async def test_a_worker_claims_only_what_its_token_names(node: Client) -> None:
    """Without commands it gets those of its token; other commands are refused."""
    narrow = Client(node.port, "narrow")
    await node.create("forbidden")
    task_id = await node.create("allowed")
    refused = await narrow.post("tasks/claim", {"commands": ["allowed", "forbidden"]})
    claimed = await narrow.post("tasks/claim", {"commands": None, "workerId": "ignored"})
    nothing = await narrow.post("tasks/claim", {"commands": []})

    assert (403, "event type not allowed") == (refused.status, refused.error)
    assert (task_id, "n") == (claimed.json["id"], claimed.json["workerId"])
    assert (204, b"") == (nothing.status, nothing.body)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "no-such-route"),
        ("GET", f"{BASE}/nothing", 404, "no-such-route"),
        ("POST", f"{BASE}/tasks/{ID}/result/more", 404, "no-such-route"),
        ("DELETE", f"{BASE}/tasks", 405, "method-not-allowed"),
        ("PATCH", "/healthz", 405, "method-not-allowed"),
    ],
)
async def test_an_unknown_path_or_method_gets_the_usual_envelope(
    node: Client, method: str, path: str, status: int, code: str
) -> None:
    """The error has the request id that was sent."""
    answer = await node.send(method, path, b"", X_Request_Id="mine-7")

    assert (status, code) == (answer.status, answer.json["code"])
    assert answer.json["requestId"] == answer.headers["x-request-id"] == "mine-7"


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"POST /v1/codeq/tasks HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/codeq/tasks HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_bytes_that_are_not_http_get_a_400_and_lose_their_connection(
    node: Client, raw: bytes
) -> None:
    """The answer has the usual envelope."""
    reader, writer = await node.connect()
    writer.write(raw)
    answer = await read_answer(reader)

    assert (400, "bad-request") == (answer.status, answer.json["code"])
    assert b"" == await reader.read()


async def test_a_chunked_body_that_breaks_off_its_grammar_is_refused(node: Client) -> None:
    """The head was valid, so the route itself answers."""
    reader, writer = await node.connect()
    head = node.head("POST", "tasks", 0).replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    writer.write(head)
    writer.write(b"zz\r\nnonsense\r\n")
    answer = await read_answer(reader)

    assert 400 == answer.status


async def test_every_answer_names_its_request(node: Client) -> None:
    """The answer has the caller's id if it is valid, or else one of 32 hex characters."""
    echoed = await node.get("/healthz", X_Request_Id="abc")
    made = await node.get("/healthz", X_Request_Id="x" * 500)

    assert "abc" == echoed.headers["x-request-id"]
    assert 32 == len(made.headers["x-request-id"])
    assert int(made.headers["x-request-id"], 16) >= 0


@pytest.mark.parametrize(
    "route",
    [each for each in APP_ROUTES if "{" in each.path],
    ids=lambda route: f"{route.method} {route.path}",
)
async def test_a_name_in_a_path_with_braces_is_refused_as_any_other(
    node: Client, route: Route
) -> None:
    """Its route answers, and says what is wrong with the name, or that nothing has it."""
    path = route.path.removeprefix(f"{BASE}/")
    answers = {
        name: await node.send(route.method, re.sub(r"\{\w+\}", name, path), b"{}")
        for name in ("a%20b", "%7Bx%7D")
    }
    spaced, braced = (_about(answer) for answer in answers.values())

    assert spaced == braced
    if path == "admin/schedules/{name}":
        assert (400, "invalid-schedule-id") == braced


async def test_a_key_may_have_braces(node: Client) -> None:
    """A key is any text, so its routes find it whatever characters it has."""
    answer = await node.get("admin/queues/braced/keys/%7Bkey%7D")

    assert (200, "{key}") == (answer.status, answer.json["key"])


def _about(answer: Answer) -> tuple[int, object]:
    return answer.status, answer.json.get("code") if answer.body else None
