"""Checks of schemathesis's answers, for rules of the contract that JSON Schema cannot express.

Each deviation from schemathesis's own checks has its reason beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from schemathesis import Case, CheckContext, Response
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.specs.openapi import checks

from codeq_cluster.api.app import ROUTES

BASE = "/v1/codeq"
INT64_MAX = 2**63 - 1

# A schema cannot express rules over several fields, or over the broker's state. Data that fits the
# schema may be refused with one of these codes, and other tests cover each of them.
BEYOND_A_SCHEMA = {
    "result-required",  # if the status is COMPLETED
    "error-required",  # if the status is FAILED
    "group-id-required",  # if the delivery mode is not fan-out
    "ids-required",  # unless all are selected
    "artifact-url-required",  # not only spaces
    "duplicate-artifact-name",  # among those with content
    "invalid-artifact-content",  # base64, in one of its variants
    "invalid-artifact-name",  # neither only dots nor with control characters
    "duplicate-idempotency-key",  # among those of a result
    "invalid-payload",  # only for one id, and for nothing else
    "invalid-cursor",  # a text from a page, with the parameters of that page
    "no-such-node",  # of this cluster
    "invalid-schedule",  # either of two fields, in the words of cron
    "invalid-zone",  # a name in the rules of time zones
    "invalid-from",  # from 1970 on
    "invalid-to",  # after it, and not after now
    "cycle",  # of tasks that would wait for each other
    "invalid-ref",  # each once in a graph
    "invalid-limit",  # without any rule
    "unknown-limit",  # of a topic, which names one
    "invalid-graph",  # without keys and groups, and with so many dependencies in all
    "invalid-depends-on",  # either of two fields, each task once, and only where a task may say so
    "invalid-group",  # only where a task may say so, and not beside a key
    "invalid-step",  # bytes, not characters
    "invalid-signal",  # in the path
    "invalid-park",  # some fields exclude each other, one of them must be there
    "invalid-tags",  # bytes, names without a colon, and each either set or removed
    "invalid-tag",  # the same
    "invalid-kinds",  # words between commas
    "invalid-task",  # the characters of an id
    "tag-or-command-required",  # for a time of creation
    "selection-required",  # one of some fields must be there
    "invalid-action",  # a field that belongs to another action, or lacks
    "invalid-metadata",  # bytes
    "invalid-unique",  # rules between its fields, and no member or node of a graph has one
}
# Elsewhere a body's `count` is ignored.
COUNTED = {f"{BASE}/tasks/claim/batch", f"{BASE}/admin/schedules/preview"}
# Items of a batch are judged one by one, so an invalid one is refused within an answer of 200.
ITEM_BY_ITEM = {
    f"{BASE}/tasks/batch": "results",
    f"{BASE}/tasks/batch/heartbeats": "leases",
    f"{BASE}/tasks/batch/results": "results",
}


def what_fits_is_taken(ctx: CheckContext, response: Response, case: Case) -> bool | None:
    """Require that valid data is accepted, unless a rule beyond the schema refuses it."""
    if response.status_code in (400, 422) and (
        _code(response) in BEYOND_A_SCHEMA
        or _holds_no_int64(case.body)
        or _holds_no_int64([int(text) for text in _as_sent(response, case) if text.isdecimal()])
    ):
        return None
    if response.status_code == 422 and response.json().get("field") == "flow.perKey.order":
        return None  # First come, first served, only where a topic has a single priority.
    return checks.positive_data_acceptance(ctx, response, case)


def what_does_not_fit_is_refused(ctx: CheckContext, response: Response, case: Case) -> bool | None:
    """Require that invalid data is refused, unless the contract tolerates it."""
    try:
        return checks.negative_data_rejection(ctx, response, case)
    except AcceptedNegativeData:
        if not _forgiven(response, case):
            raise
        return None


def _forgiven(response: Response, case: Case) -> bool:
    path, body = case.path, case.body
    answers = ITEM_BY_ITEM.get(path)
    if answers and any("error" in item for item in response.json()[answers]):
        return True
    if path == f"{BASE}/admin/queues/{{command}}":
        return True  # A queue whose name no task can have is an empty one.
    if any(not text for text in _as_sent(response, case)):
        return True  # An empty parameter is the same as none.
    if "groupBy" in (case.query or {}):
        return True  # All groups come in one answer, so `limit` and `cursor` are ignored.
    if case.method == "PUT" and "{artifact}" in path:
        return True  # An empty body is an artifact as well.
    if body is None:
        # Null is the same as absent.
        return not case.operation.definition.raw["requestBody"]["required"]
    if not isinstance(body, dict):
        return False
    unheeded = {
        "count": path not in COUNTED,
        **dict.fromkeys(
            ("extendSeconds", "progress", "checkpoint", "log"), not path.endswith("/heartbeat")
        ),
        "hold": not path.endswith("/nack"),
        # A field in the body overrides the query.
        **(dict.fromkeys(case.query or {}, True) if "/dlq" in path else {}),
    }
    return _says_nothing(body) or any(
        unheeded.get(name) and value is not None for name, value in body.items()
    )


def _as_sent(response: Response, case: Case) -> Iterator[str]:
    # Schemathesis does not send values without a text, such as an object without fields.
    sent = parse_qs(urlsplit(response.request.url or "").query, keep_blank_values=True)
    for name in case.query or {}:
        yield sent.get(name, [""])[0]
    for name in case.headers or {}:
        yield str(response.request.headers.get(name, ""))


def _says_nothing(body: object) -> bool:
    # In the reference, the empty text means a missing one.
    match body:
        case dict():
            return any(body.get(name) == "" for name in ("runAt", "webhook", "before")) or any(
                map(_says_nothing, body.values())
            )
        case list():
            return any(map(_says_nothing, body))
        case _:
            return False


def allow_names_what_is_served(ctx: CheckContext, response: Response, case: Case) -> bool | None:
    """Require the methods of the path in `Allow`, unless the path is also an id of another one."""
    others = [
        re.sub(r"{\w+}", "[^/]+", path.replace("{artifact}", ".+"))
        for path in {route.path for route in ROUTES} - {case.path}
    ]
    if any(re.fullmatch(path, case.path) for path in others):
        return None
    return checks.allow_header_conformance(ctx, response, case)


def the_request_is_named(ctx: CheckContext, response: Response, case: Case) -> bool | None:
    """Require a request id in every answer, and the same one in the body of every error."""
    (request_id,) = response.headers["x-request-id"]
    assert request_id
    if response.status_code >= 400 and response.content:
        assert request_id == response.json()["requestId"]
    return None


def _code(response: Response) -> str:
    # An answer to HEAD has no body; the same GET shows it.
    return str(response.json()["code"]) if response.content else "invalid-artifact-name"


def _holds_no_int64(body: object) -> bool:
    # For JSON Schema, 1.0 and a number of a hundred digits are integers; for the contract they are
    # not.
    match body:
        case bool():
            return False
        case float():
            return True
        case int():
            return abs(body) > INT64_MAX
        case dict():
            return any(map(_holds_no_int64, body.values()))
        case list():
            return any(map(_holds_no_int64, body))
        case _:
            return False
