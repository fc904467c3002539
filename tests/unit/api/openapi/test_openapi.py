"""OpenAPI: the document agrees with the routes and the types of bodies, and has nothing else."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Union, get_args, get_origin, get_type_hints

import jsonschema
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from codeq_cluster.api.app import ROUTES
from codeq_cluster.api.declared.bodies import Body
from codeq_cluster.api.http import call, refusals
from codeq_cluster.api.http.answer import HttpAnswer
from codeq_cluster.api.http.middleware import Route
from codeq_cluster.api.openapi.document import encoded
from codeq_cluster.api.openapi.operation import body_of, operation_id, with_items
from codeq_cluster.api.routes import (
    artifacts,
    audit,
    backups,
    bulk,
    cancels,
    cluster,
    dead_letters,
    events,
    flows,
    follow_ups,
    graph_calls,
    graphs,
    group_calls,
    groups,
    imports,
    keys,
    lanes,
    leases,
    limits,
    listing,
    membership,
    ops,
    queues,
    reads,
    rejects,
    reports,
    results,
    revising,
    schedule_bodies,
    schedules,
    steps,
    subscriptions,
    tags,
    task_bodies,
    task_lists,
    tasks,
    topics,
    uniques,
    webhooks,
    workers,
)
from codeq_cluster.core.outcomes import Rejection
from codeq_cluster.settings import LimitSettings, NodeSettings, PeerAddress
from codeq_cluster.webhooks import signing
from codeq_cluster.webhooks.http_client import DELIVERY
from tests.unit.api.openapi.described import JSON, Described

SETTINGS = NodeSettings(
    node_id="n1",
    cluster_id="c",
    cluster_secret="a secret that is long enough for a cluster",
    peers=(PeerAddress(id="n1", link="127.0.0.1:7000", http="http://127.0.0.1"),),
    data_dir=Path("data"),
    limits=LimitSettings(batch_max=7),
)
DOCUMENT = json.loads(encoded(ROUTES, SETTINGS))
DESCRIBED = Described(DOCUMENT)
SCHEMAS = {
    schema.body.__name__: schema
    for operation in ROUTES
    if operation.body is not None
    for schema in with_items(operation.body)
}
HANDLERS = (
    *(call, listing, refusals, revising),
    *(tasks, workers, reads, events, queues, keys),
    *(artifacts, cancels, flows, follow_ups, lanes, leases, limits, rejects, reports, results),
    *(audit, backups, bulk, cluster, imports, membership),
    *(
        dead_letters,
        schedule_bodies,
        graph_calls,
        graphs,
        group_calls,
        groups,
        schedules,
        steps,
        subscriptions,
        tags,
        task_bodies,
        task_lists,
        topics,
        uniques,
        webhooks,
    ),
)
# The fields without which these bodies are refused.
NEEDED = {
    "JoinBody": {"nodeId": "n4", "addr": "h:1", "httpAddr": "http://h:1"},
    "RemoveBody": {"nodeId": "n4"},
    "SubscriptionBody": {"callbackUrl": "http://h/"},
    "TransferBody": {"shard": 0},
}
# The index of the argument with the code.
REFUSALS = {"ApiError": 2, "not_applied": 2, "bad_request": 1}


def test_the_document_is_valid_openapi_3_1() -> None:
    """Programs that read OpenAPI can read this document."""
    OpenAPIV31SpecValidator(DOCUMENT).validate()

    assert "3.1.0" == DOCUMENT["openapi"]


@pytest.mark.parametrize(("body", "field"), [("TaskBody", "payload"), ("ResultBody", "result")])
@pytest.mark.parametrize("value", [{"a": 1}, [], ["x", None], "", "text", 0, 1.5, True, False])
def test_any_json_is_described_as_taken(body: str, field: str, value: object) -> None:
    """The schema admits any JSON, and the text tells readers of the page so."""
    schema = DOCUMENT["components"]["schemas"][body]["properties"][field]
    jsonschema.validate(value, {key: schema[key] for key in schema if key != "default"})

    assert schema["description"].startswith("Any JSON but null: an object, an array, a text")


@pytest.mark.parametrize(
    "name", ["leaseToken", "index", "term", "appliedIndex", "bytes", "logBytes", "size"]
)
def test_an_integer_that_may_need_64_bits_says_so(name: str) -> None:
    """A generated program in a language with narrow integers reads it all the same."""
    schemas = DOCUMENT["components"]["schemas"].values()
    found = [own[name] for each in schemas if name in (own := each.get("properties", {}))]

    assert found
    kinds = [each.get("anyOf", [each])[0] for each in found]  # The other kind is null.
    assert [("integer", "int64")] * len(kinds) == [(it["type"], it["format"]) for it in kinds]


def test_no_answer_repeats_the_headers_of_every_answer() -> None:
    """The preface says them: a generator would make a type of them for each status."""
    answers = [each for *_, made in DESCRIBED.operations() for each in made["responses"].values()]
    told = {name for each in answers for name in each.get("headers", {})}

    assert "X-Request-Id" in DOCUMENT["info"]["description"]
    assert {"Retry-After", "WWW-Authenticate"} <= told
    assert "X-Request-Id" not in told


def test_every_route_is_described_and_nothing_else() -> None:
    """The document is made from the route table."""
    described = {(method, path) for path, method, _ in DESCRIBED.operations()}

    assert {(route.method, route.path) for route in ROUTES} == described


def test_every_route_has_its_answers_described() -> None:
    """A new route without described answers fails here."""
    assert [] == [operation_id(each) for each in ROUTES if not each.answers]


def test_a_body_is_described_by_a_type_that_its_handler_returns() -> None:
    """The document shows the types that mypy checks in a handler."""
    seen = 0
    for operation in ROUTES:
        handler = operation.handler
        returned = get_type_hints(handler)["return"]
        answers = get_args(returned) if get_origin(returned) is Union else [returned]
        shown = {body for each in operation.answers if (body := body_of(each, handler)) is not None}
        told = {get_args(each)[0] for each in answers if get_origin(each) is HttpAnswer}
        seen += len(shown)

        assert told - {NoneType} == shown, operation_id(operation)
    assert seen > 40


def test_operations_have_names_and_tags_of_their_own() -> None:
    """Generated clients name their functions after the operations."""
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    found = [operation for _, _, operation in DESCRIBED.operations()]

    assert len({each["operationId"] for each in found}) == len(found) == len(ROUTES)
    assert tags == {tag for each in found for tag in each["tags"]}
    assert all(each["summary"] for each in found)


def test_every_reference_resolves() -> None:
    """And every schema is referred to."""
    referred = set(_references(DOCUMENT))
    shapes = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}

    assert shapes == referred


def test_a_choice_of_words_says_that_it_is_a_text() -> None:
    """Otherwise generated clients have no type for it, and one in Go breaks."""
    parameters = [each for _, _, found in DESCRIBED.operations() for each in found["parameters"]]
    schemas = [
        *(each["schema"] for each in parameters),
        *DOCUMENT["components"]["schemas"].values(),
    ]
    choices = [schema for schema in schemas if "enum" in schema]

    assert choices
    assert {"string"} == {schema.get("type") for schema in choices}


def test_every_field_of_a_body_is_described_under_the_decoders_name() -> None:
    """The document shows the type that validates the request."""
    for name, schema in SCHEMAS.items():
        properties = DOCUMENT["components"]["schemas"][name]["properties"]

        assert {each.encode_name for each in msgspec.structs.fields(schema.body)} == set(properties)
        assert all(each["description"] for each in properties.values())


def test_every_type_of_body_is_shown() -> None:
    """The document leaves out no body, but for what several have in common."""
    declared = {
        name: value
        for module in HANDLERS
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Body) and value is not Body
    }

    common = {name for name, value in declared.items() if value.__subclasses__()}
    assert declared.keys() - common <= set(SCHEMAS) <= declared.keys()


@pytest.mark.parametrize(
    "route",
    [each for each in ROUTES if each.unreadable],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_a_route_that_reads_a_body_shows_one_that_its_decoder_accepts(route: Route) -> None:
    """The example, and each item in it, can be sent unchanged."""
    described = DOCUMENT["paths"][route.path][route.method.lower()]
    body = described["requestBody"]["content"][JSON]
    schema = SCHEMAS[body["schema"]["$ref"].rpartition("/")[2]]
    decoded = schema.decode(json.dumps(body["example"]))
    for items, item in (
        ("leases", leases.LEASE_SCHEMA),
        ("results", results.RESULT_SCHEMA),
        ("tasks", tasks.TASK_SCHEMA),
    ):
        for each in getattr(decoded, items, None) or ():
            item.decode(each)

    assert [] == DESCRIBED.faults(body["schema"], body["example"])


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        ("TaskBody", {"payload": 1}),
        ("TaskBody", {"command": "c"}),
        ("TaskBody", {"command": "c", "payload": None}),
        ("TaskBody", {"command": "no spaces", "payload": 1}),
        ("TaskBody", {"command": "c", "payload": 1, "delaySeconds": -1}),
        ("TaskBody", {"command": "c", "payload": 1, "priority": "1"}),
        ("TasksBody", {"tasks": []}),
        ("TasksBody", {"tasks": [{"command": "c", "payload": 1}] * 8}),
        ("ClaimBody", {"commands": "c"}),
        ("LeaseBody", {"leaseToken": "7"}),
        ("ResultBody", {"status": "DONE"}),
        ("ResultsBody", {"results": [{"status": "FAILED", "error": "e"}]}),
        ("ArtifactBody", {"name": "a"}),
        ("SelectionBody", {"ids": []}),
        ("SelectionBody", {"limit": 0}),
        ("SelectionBody", {"dryRun": "yes"}),
        ("CleanupBody", {"before": 5}),
        ("TopicBody", {"priorityTiers": [1, 1]}),
        ("TopicBody", {"priorityTiers": [11]}),
        ("TopicBody", {"maxAttempts": 101}),
        ("TopicBody", {"deadLetterTopicRef": "no_label"}),
        ("TopicBody", {"weight": 0}),
        ("TopicBody", {"owner": "me"}),
        ("ReplayBody", {"ids": "all"}),
        ("TransferBody", {"to": "n2"}),
        ("TransferBody", {"shard": 99}),
        ("JoinBody", {"nodeId": "n4", "addr": "h:1"}),
        ("JoinBody", {"nodeId": "n/4", "addr": "h:1", "httpAddr": "http://h:1"}),
        *(
            ("JoinBody", {"nodeId": "n4", "addr": addr, "httpAddr": "http://h:1"})
            for addr in ("h", "h:0", "h:65536", ":1", "a b:1", "::1:1", "h:1:")
        ),
        ("JoinBody", {"nodeId": "n4", "addr": "h:1", "httpAddr": "h:1"}),
        ("JoinBody", {"nodeId": "n4", "addr": "h:1", "httpAddr": "http://h\x13:1"}),
        ("RemoveBody", {"dryRun": True}),
        ("PreviewBody", {"cron": "@daily", "count": 101}),
        ("PreviewBody", {"every": 900}),
        ("SubscriptionBody", {"eventTypes": ["c"]}),
        ("SubscriptionBody", {"callbackUrl": "http://a/", "deliveryMode": "some"}),
        ("RenewalBody", {"ttlSeconds": -1}),
    ],
)
def test_a_body_that_a_route_refuses_does_not_fit_the_document(shape: str, body: object) -> None:
    """A client that validates by the document does not accept such a body."""
    assert DESCRIBED.faults({"$ref": f"#/components/schemas/{shape}"}, body) != []


def test_a_null_field_is_described_as_absent() -> None:
    """The description agrees with the decoder."""
    for name, schema in SCHEMAS.items():
        nulls = {each.name: None for each in schema.fields if not each.required}
        schema.decode(json.dumps(nulls | NEEDED.get(name, {})))
        faults = DESCRIBED.faults({"$ref": f"#/components/schemas/{name}"}, nulls)

        assert [] == [fault for fault in faults if "required" not in fault]


def test_a_body_that_the_decoder_takes_with_unknown_fields_is_not_closed_by_the_document() -> None:
    """Unknown fields are ignored, so a client that validates by the document must allow them."""
    closed = {
        name
        for name in SCHEMAS
        if "additionalProperties" in DOCUMENT["components"]["schemas"][name]
    }

    assert {
        "SelectionBody",
        "RequeueBody",
        "PurgeBody",
        "TopicBody",
        "FlowBody",
        "LimitBody",
        "PerKeyBody",
        "RateBody",
        "KeyBody",
        "ScheduleBody",
        "ItemBody",
        "UniqueBody",
        "SelectBody",
    } == closed


def test_every_example_of_an_answer_looks_as_its_schema_says() -> None:
    """Errors have examples too, each under its code."""
    seen = 0
    for _, _, operation in DESCRIBED.operations():
        for response in operation["responses"].values():
            for content in response.get("content", {}).values():
                examples = [each["value"] for each in content.get("examples", {}).values()]
                examples += [content["example"]] if "example" in content else []
                seen += len(examples)

                assert [[] for _ in examples] == [
                    DESCRIBED.faults(content["schema"], each) for each in examples
                ]
    assert seen > 100


def test_the_requests_that_nodes_make_are_described() -> None:
    """Their examples look as their schemas say, and every header of a signed request is there."""
    sent = {name: methods["post"] for name, methods in DOCUMENT["webhooks"].items()}
    key = signing.SigningKey(id="k", text="t")
    signed = signing.headers([key], unix_s=1, body=b"{}").keys() | {DELIVERY}
    for request in sent.values():
        content = request["requestBody"]["content"][JSON]

        assert [] == DESCRIBED.faults(content["schema"], content["example"])
        assert signed <= {each["name"] for each in request["parameters"]}
    assert {"taskEnded", "queueReady"} == sent.keys()


def test_every_refusal_that_a_handler_makes_is_documented_and_no_other() -> None:
    """Codes are read from the handlers' source."""
    made = {code for module in HANDLERS for code in _codes(Path(str(module.__file__)))}
    documented = {
        code
        for path, method, operation in DESCRIBED.operations()
        for status in operation["responses"]
        if int(status) >= 400 and path != "/readyz"
        for code in _enumerated(method, path, int(status))
    }
    # No route's operation is refused for too many of something yet; what is misplaced is placed
    # again.
    rejections = {each.value for each in Rejection} - {"too-many", "misplaced"}
    usual = {
        "unauthorized",
        "forbidden",
        "auth-unavailable",
        "invalid-body",
        "request-timeout",
        "body-too-large",
        "no-leader",
        "overloaded",
        "outcome-unknown",
        "upgrade-under-way",
        "rate-limited",
        "artifact-store-failed",
        "internal",
    }

    assert made | rejections | usual == documented


def test_the_access_of_a_route_shows_in_its_security() -> None:
    """Open routes need no security; a worker's route names its scope."""
    for route in ROUTES:
        operation = DOCUMENT["paths"][route.path][route.method.lower()]
        scopes = [route.scope] if route.scope else []
        expected = [] if route.access == "open" else [{"bearer": scopes}]

        assert expected == operation["security"], operation_id(route)
        assert bool(expected) == ("401" in operation["responses"])


def test_the_document_names_the_limits_of_its_node() -> None:
    """Limits are configured, so the documents of two nodes may differ."""
    schema = DOCUMENT["components"]["schemas"]["TasksBody"]["properties"]["tasks"]
    refused = DESCRIBED.answer("POST", "/v1/codeq/tasks/batch", 400)["content"][JSON]["examples"]

    assert 7 == schema["maxItems"]
    assert "batch size exceeds maximum of 7" == refused["batch-too-large"]["summary"]


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """The page names no other host, and its policy allows none."""
    page = Path(str(ops.__file__)).parents[1] / "web" / "docs.html"
    text = page.read_text()

    assert "http:" not in text
    assert "https:" not in text
    assert "//cdn" not in text
    assert " src=" not in text


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _enumerated(method: str, path: str, status: int) -> list[str]:
    answer = DESCRIBED.answer(method, path, status)
    codes: list[str] = answer["content"][JSON]["schema"]["properties"]["code"]["enum"]
    return codes


def _codes(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            at = REFUSALS.get(node.func.id)
            if at is not None:
                code = node.args[at]
                assert isinstance(code, ast.Constant), ast.unparse(node)
                yield code.value
