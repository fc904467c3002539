"""Operation: one route with its handler's description, as an operation of the document."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Raw

from codeq_cluster.api.http.errors import (
    ApiError,
    auth_unavailable,
    envelope,
    from_access,
    from_failure,
    invalid_body,
)
from codeq_cluster.api.http.memory_limits import result_bytes_max
from codeq_cluster.api.http.middleware import Handler, Route
from codeq_cluster.api.http.refusals import NEVER_STALE, STALLED, body_too_large
from codeq_cluster.api.openapi.components import REF, body_of
from codeq_cluster.api.openapi.types import (
    COMMAND_SCHEMA,
    JSON,
    DescribedAnswer,
    DescribedBody,
    DescribedOperation,
    Json,
    Parameter,
)
from codeq_cluster.auth import Access, AccessRefused, Role
from codeq_cluster.auth.identity import NO_TENANT_DATA, PAGE_ALONE, lacks
from codeq_cluster.errors import MethodUnknown, NoLeader, OutcomeUnknown, Overloaded
from codeq_cluster.settings import NodeSettings

_REQUEST_ID = "5f0c4a2e9b7d4c1f8e3a6b2d1c0f9e8d"

_CALLER = {
    Access.OPEN: "Needs no token.",
    Access.PRODUCER: "Needs a producer's token.",
    Access.WORKER: "Needs a worker's token",
    Access.TENANT: "Needs a token of the tenant: a producer's, a worker's or an admin's.",
    Access.ANY: "Needs any valid token.",
    Access.ADMIN: "Needs an admin's token: scope `codeq:admin`, or role `ADMIN`.",
    Access.OPERATOR: "Needs an operator's token: scope `codeq:operator`.",
}
_REFUSED = (
    AccessRefused(401, "missing Authorization header"),
    AccessRefused(401, "invalid Authorization format"),
    AccessRefused(401, "invalid token"),
    AccessRefused(403, "invalid tenant claims"),
)
_WORKER_REFUSED = (
    AccessRefused(401, "missing eventTypes"),
    AccessRefused(401, "missing scope"),
    AccessRefused(403, "missing scope"),
)
_FAILED = (NoLeader(), Overloaded("a queue"), OutcomeUnknown(), MethodUnknown())

_COMMANDS = {"command", "name"}  # The names of a command, and of a topic by its command, in paths.

_HEADERS = {
    "Retry-After": "Seconds to wait before the next try.",
    "WWW-Authenticate": "`Bearer`.",
    "X-Outcome": "`not-applied`: nothing was done.",
    "ETag": "Tag of the artifact's present content.",
    "Content-Range": "How many bytes the artifact has.",
}
_USUAL_HEADERS = {
    "X-Request-Id": {
        "description": "The request's id: the one it was sent with, or a generated one.",
        "schema": {"type": "string"},
    },
    "X-Content-Type-Options": {"description": "`nosniff`.", "schema": {"type": "string"}},
}


def operation(
    route: Route,
    described: DescribedOperation,
    settings: NodeSettings,
    schema_of: Mapping[str, Json],
) -> Json:
    """Return the operation of a route on a node with these settings.

    Args:
        route: From the route table; its handler's docstring says what it does.
        described: The description of its requests and answers.
        settings: They bound bodies.
        schema_of: The schema of each answer's body, by its type's text.
    """
    first, *more = inspect.cleandoc(route.handler.__doc__ or "").split("\n\n")
    caller = _CALLER[route.access] + (f" with the scope `{route.scope}`." if route.scope else "")
    made: Json = {
        "tags": [tag(route.handler)[0]],
        "operationId": operation_id(route.handler),
        "summary": first.removesuffix("."),
        "description": " ".join([first, *more, caller]),
        "security": [{"bearer": [route.scope] if route.scope else []}]
        if route.access is not Access.OPEN
        else [],
        "parameters": [*_of_path(route.path), *map(_parameter, described.parameters)],
        "responses": {
            str(each.status): _answer(each, body_of(each, route.handler), schema_of)
            for each in described.answers
        },
    }
    errors: dict[int, list[ApiError]] = {}
    for error in (*_usual_errors(route, described, settings), *described.errors):
        errors.setdefault(error.status, []).append(error)
    for status, of_status in sorted(errors.items()):
        made["responses"][str(status)] = _error(of_status)
    if described.body is not None:
        made["requestBody"] = _body(described.body)
    elif described.binary:
        made["requestBody"] = {"required": True, "content": {"*/*": {"schema": {}}}}
    return made


def operation_id(handler: Handler) -> str:
    """Return the name of a handler's operation: its module and its function."""
    return f"{handler.__module__.rpartition('.')[2]}_{getattr(handler, '__name__', '')}"


def tag(handler: Handler) -> tuple[str, str]:
    """Return the subject of a handler's module, and its description."""
    # Both are in the first line of a handler's module.
    name, _, text = (sys.modules[handler.__module__].__doc__ or "").strip().partition(": ")
    return name, text[:1].upper() + text[1:]


def _body(body: DescribedBody) -> Json:
    schema: Json = {"$ref": REF.format(name=body.type.__name__)}
    if body.required:
        schema["required"] = list(body.required)
        # Null is the same as absent.
        schema["properties"] = {name: {"not": {"type": "null"}} for name in body.required}
    content = {"schema": schema, "example": body.example}
    return {"required": not body.may_miss, "content": {JSON: content}}


def _answer(answer: DescribedAnswer, body: object, schema_of: Mapping[str, Json]) -> Json:
    made: Json = {
        "description": answer.text,
        "headers": _headers(answer.headers) | _USUAL_HEADERS,
    }
    if body is not None:
        content: Json = {"schema": schema_of[repr(body)]}
        if answer.example is not None:
            content["example"] = answer.example
        made["content"] = {answer.media: content}
    elif answer.media not in {"", JSON}:
        made["content"] = {answer.media: {"schema": {"type": "string"}}}
    return made


def _usual_errors(
    route: Route, described: DescribedOperation, settings: NodeSettings
) -> Iterable[ApiError]:
    """Yield the errors of requests that do not reach their handler, or that find no shard."""
    if route.access is not Access.OPEN:
        yield from map(from_access, _REFUSED)
        yield auth_unavailable()
    match route.access:
        case Access.PRODUCER | Access.TENANT:
            yield from_access(AccessRefused(403, NO_TENANT_DATA))
            yield from_access(AccessRefused(403, PAGE_ALONE))
        case Access.WORKER:
            yield from map(from_access, _WORKER_REFUSED)
        case Access.ADMIN:
            yield from_access(lacks(Role.ADMIN))
        case Access.OPERATOR:
            yield from_access(lacks(Role.OPERATOR))
        case Access.OPEN | Access.ANY | Access.PAGE:
            pass
    if not route.stale:
        yield NEVER_STALE
    if route.unreadable:
        yield invalid_body(route.unreadable)
        yield STALLED
        yield body_too_large(
            result_bytes_max(settings) if route.large else settings.limits.max_body_bytes
        )
    if described.replicated:
        yield from map(from_failure, _FAILED)
    yield ApiError(500, "internal error", "internal")


def _of_path(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": COMMAND_SCHEMA if name in _COMMANDS else {"type": "string"},
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.text,
        "schema": parameter.schema,
    }


def _headers(texts: Mapping[str, str]) -> Json:
    return {
        name: {"description": text, "schema": {"type": "string"}} for name, text in texts.items()
    }


def _error(errors: Sequence[ApiError]) -> Json:
    examples: Json = {}
    for error in errors:
        body = Raw(envelope(error, _REQUEST_ID))
        name, number = error.code, 1
        while name in examples:
            number += 1
            name = f"{error.code}-{number}"
        examples[name] = {"summary": error.text, "value": body}
    codes = list(dict.fromkeys(error.code for error in errors))
    schema = {
        "$ref": REF.format(name="Error"),
        "properties": {"code": {"type": "string", "enum": codes}},
    }
    headers = {name: _HEADERS[name] for error in errors for name in error.headers}
    return {
        "description": ", ".join(f"`{code}`" for code in codes),
        "headers": _headers(headers) | _USUAL_HEADERS,
        "content": {JSON: {"schema": schema, "examples": examples}},
    }
