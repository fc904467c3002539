"""Document: the route table and the bodies' types put together as OpenAPI 3.1."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct

from codeq_cluster import __version__
from codeq_cluster.api.http.answer import HttpAnswer
from codeq_cluster.api.http.errors import (
    ApiError,
    Envelope,
    auth_unavailable,
    envelope,
    from_access,
    from_failure,
    invalid_body,
)
from codeq_cluster.api.http.memory_limits import result_bytes_max
from codeq_cluster.api.http.middleware import Handler, Route
from codeq_cluster.api.http.refusals import NEVER_STALE, STALLED, body_too_large
from codeq_cluster.api.openapi import (
    artifacts,
    audit,
    backups,
    cluster,
    dead_letters,
    deliveries,
    ops,
    queues,
    subscriptions,
    task_lists,
    tasks,
    workers,
)
from codeq_cluster.api.openapi.types import (
    COMMAND_SCHEMA,
    JSON,
    BodyFields,
    DescribedAnswer,
    DescribedBody,
    DescribedOperation,
    Fields,
    Operations,
    Parameter,
)
from codeq_cluster.auth import Access, AccessRefused, Role
from codeq_cluster.auth.identity import NO_TENANT_DATA, PAGE_ALONE, lacks
from codeq_cluster.errors import MethodUnknown, NoLeader, OutcomeUnknown, Overloaded
from codeq_cluster.settings import NodeSettings

_Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_REQUEST_ID = "5f0c4a2e9b7d4c1f8e3a6b2d1c0f9e8d"

_ABOUT = """A task broker for several machines, wire-compatible with codeQ.

Every route works on every node. Field names in bodies match in any case, unknown fields are \
ignored, and null is the same as absent. Every error is an `Error`, whose `code` is stable; \
`outcome-unknown` says that a write may or may not have taken effect, never that it failed.

Before any route is reached: 400 `bad-request` for what is no HTTP, 404 `no-such-route`, \
405 `method-not-allowed`, 417 `expectation-failed`, and 503 `overloaded` for a connection too many.
"""

_CALLER = {
    Access.OPEN: "Needs no token.",
    Access.PRODUCER: "Needs a producer's token.",
    Access.WORKER: "Needs a worker's token",
    Access.TENANT: "Needs a token of the tenant: a producer's, a worker's or an admin's.",
    Access.ANY: "Needs a token, anybody's.",
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

_BODILESS = {204, 304}
_COMMANDS = {"command", "name"}  # What paths call a command, and a topic by its command.
_NOTHING_SAID = DescribedOperation()  # Such a route is described by what the table says alone.

_HEADERS = {
    "Retry-After": "Seconds to wait before the next try.",
    "WWW-Authenticate": "`Bearer`.",
    "X-Outcome": "`not-applied`: nothing was done.",
    "ETag": "Of the artifact as it is.",
    "Content-Range": "How many bytes the artifact has.",
}
_USUAL_HEADERS = {
    "X-Request-Id": {
        "description": "The request's own, or one made for it.",
        "schema": {"type": "string"},
    },
    "X-Content-Type-Options": {"description": "`nosniff`.", "schema": {"type": "string"}},
}


def operations(settings: NodeSettings) -> Operations:
    """Return what each handler takes and answers on a node of these settings."""
    limits = settings.limits
    return {
        **tasks.operations(limits),
        **workers.operations(limits),
        **artifacts.operations(limits),
        **dead_letters.OPERATIONS,
        **task_lists.OPERATIONS,
        **queues.OPERATIONS,
        **deliveries.OPERATIONS,
        **audit.OPERATIONS,
        **cluster.operations(settings.shards),
        **backups.operations(settings.raft.entry_bytes_max),
        **subscriptions.OPERATIONS,
        **ops.OPERATIONS,
    }


def fields(settings: NodeSettings) -> BodyFields:
    """Return what bodies' types do not say, on a node of these settings."""
    return {
        **tasks.fields(settings),
        **workers.fields(settings),
        **artifacts.fields(settings.limits),
        **dead_letters.FIELDS,
        **task_lists.FIELDS,
        **queues.FIELDS,
        **deliveries.FIELDS,
        **cluster.fields(settings.shards),
        **subscriptions.fields(settings.webhooks.subscription_min_interval_seconds),
    }


def encoded(routes: Sequence[Route], settings: NodeSettings) -> bytes:
    """Return the document of a node as JSON text."""
    return msgspec.json.encode(document(routes, settings))


def document(routes: Sequence[Route], settings: NodeSettings) -> _Json:
    """Describe the routes as a node of these settings serves them."""
    known = operations(settings)
    bodies = [
        body
        for handler, each in known.items()
        for answer in each.answers
        if (body := body_of(answer, handler)) is not None
    ]
    described, components = msgspec.json.schema_components([*bodies, Envelope], ref_template=_REF)
    schema_of = dict(zip(map(repr, bodies), described, strict=False))
    components["Error"] = components.pop(Envelope.__name__)
    for component in components.values():
        if "enum" in component:
            component["type"] = "string"  # The library names the words alone.
    for body, said in fields(settings).items():
        components[body.__name__] = _request_schema(body, said)
    paths: _Json = {}
    for route in routes:
        described_route = _Described(
            route, known.get(route.handler, _NOTHING_SAID), settings, schema_of
        )
        paths.setdefault(route.path, {})[route.method.lower()] = described_route.as_json()
    return {
        "openapi": "3.1.0",
        "info": {"title": "codeq-cluster", "version": __version__, "description": _ABOUT},
        # What differs between nodes that are not configured alike; `doctor` reads it.
        "x-node": {
            "artifacts": settings.artifacts.provider.value,
            "webhooks": settings.webhooks.signing.value,
        },
        "servers": [{"url": "/"}],
        "tags": _tags(routes),
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Described:
    """One route on its way into the document."""

    def __init__(
        self,
        route: Route,
        operation: DescribedOperation,
        settings: NodeSettings,
        schema_of: Mapping[str, _Json],
    ) -> None:
        self._route = route
        self._operation = operation
        self._settings = settings
        self._schema_of = schema_of

    def as_json(self) -> _Json:
        route, operation = self._route, self._operation
        first, *more = _documented(route.handler).split("\n\n")
        caller = _CALLER[route.access] + (
            f" with the scope `{route.scope}`." if route.scope else ""
        )
        described: _Json = {
            "tags": [_tag(route.handler)[0]],
            "operationId": operation_id(route.handler),
            "summary": first.removesuffix("."),
            "description": " ".join([first, *more, caller]),
            "security": [{"bearer": [route.scope] if route.scope else []}]
            if route.access is not Access.OPEN
            else [],
            "parameters": [*_of_path(route.path), *map(_parameter, operation.parameters)],
            "responses": self._responses(),
        }
        if operation.body is not None:
            described["requestBody"] = self._body(operation.body)
        elif operation.binary:
            described["requestBody"] = {"required": True, "content": {"*/*": {"schema": {}}}}
        return described

    @staticmethod
    def _body(body: DescribedBody) -> _Json:
        schema: _Json = {"$ref": _REF.format(name=body.type.__name__)}
        if body.required:
            schema["required"] = list(body.required)
            # Null is the same as absent.
            schema["properties"] = {name: {"not": {"type": "null"}} for name in body.required}
        content = {"schema": schema, "example": body.example}
        return {"required": not body.may_miss, "content": {JSON: content}}

    def _responses(self) -> _Json:
        responses = {str(each.status): self._answer(each) for each in self._operation.answers}
        errors: dict[int, list[ApiError]] = {}
        for error in (*self._usual_errors(), *self._operation.errors):
            errors.setdefault(error.status, []).append(error)
        for status, told in sorted(errors.items()):
            responses[str(status)] = _error(told)
        return responses

    def _answer(self, answer: DescribedAnswer) -> _Json:
        described: _Json = {
            "description": answer.text,
            "headers": _headers(answer.headers) | _USUAL_HEADERS,
        }
        body = body_of(answer, self._route.handler)
        if body is not None:
            content: _Json = {"schema": self._schema_of[repr(body)]}
            if answer.example is not None:
                content["example"] = answer.example
            described["content"] = {answer.media: content}
        elif answer.media not in {"", JSON}:
            described["content"] = {answer.media: {"schema": {"type": "string"}}}
        return described

    def _usual_errors(self) -> Iterable[ApiError]:
        """Yield what becomes of a request that its handler never sees, or that finds no shard."""
        route = self._route
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
            body_bytes_max = (
                result_bytes_max(self._settings)
                if route.large
                else self._settings.limits.max_body_bytes
            )
            yield invalid_body(route.unreadable)
            yield STALLED
            yield body_too_large(body_bytes_max)
        if self._operation.replicated:
            yield from map(from_failure, _FAILED)
        yield ApiError(500, "internal error", "internal")


def body_of(answer: DescribedAnswer, handler: Handler) -> Any:
    """Return the type of an answer's body, None when it has none, or none that is JSON."""
    if answer.media != JSON or answer.status in _BODILESS:
        return None
    return answer.body or _returned(handler)


@lru_cache(maxsize=128)
def _returned(handler: Handler) -> Any:
    """Return the type of the body that a handler's signature names."""
    returned = get_type_hints(handler)["return"]
    assert get_origin(returned) is HttpAnswer, f"{handler} does not say what its body is"
    [body] = get_args(returned)
    return body


def operation_id(handler: Handler) -> str:
    """Return what a handler's operation is called: its module and its name."""
    return f"{handler.__module__.rpartition('.')[2]}_{_name(handler)}"


def _request_schema(body: type[Struct], said: Fields) -> _Json:
    name = body.__name__
    _, components = msgspec.json.schema_components([_describable(body)], ref_template=_REF)
    schema: _Json = components[name]
    # The decoder is strict so that it is fast; what it refuses is read again without such fields.
    if not said.strict:
        del schema["additionalProperties"]
    schema["required"] = list(said.required)
    if said.one_of:
        schema["anyOf"] = [{"required": [name]} for name in said.one_of]
    for field, facts in said.known.items():
        of_field = schema["properties"][field]
        if field in said.required:
            # Null is the same as absent.
            del of_field["default"]
            of_field |= of_field.pop("anyOf", [{}])[0]
        of_field |= facts
    return schema


def _describable(body: type[Struct]) -> type[Struct]:
    # The same fields once more: a default that is raw JSON is the one thing msgspec cannot
    # describe.
    return msgspec.defstruct(
        body.__name__,
        [
            (
                each.name,
                each.type,
                msgspec.field(
                    name=each.encode_name,
                    default=json.loads(bytes(each.default))
                    if isinstance(each.default, Raw)
                    else each.default,
                ),
            )
            for each in msgspec.structs.fields(body)
        ],
        namespace={"__doc__": body.__doc__},
        forbid_unknown_fields=True,
    )


def _tags(routes: Iterable[Route]) -> list[_Json]:
    tags = dict(_tag(route.handler) for route in routes)
    return [{"name": name, "description": text} for name, text in tags.items()]


def _tag(handler: Handler) -> tuple[str, str]:
    # A module of handlers opens with its subject and what it does for whom.
    name, _, text = (sys.modules[handler.__module__].__doc__ or "").strip().partition(": ")
    return name, text[:1].upper() + text[1:]


def _documented(handler: Handler) -> str:
    return inspect.cleandoc(handler.__doc__ or "")


def _name(handler: Handler) -> str:
    return str(getattr(handler, "__name__", ""))


def _of_path(path: str) -> list[_Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": COMMAND_SCHEMA if name in _COMMANDS else {"type": "string"},
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _parameter(parameter: Parameter) -> _Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.text,
        "schema": parameter.schema,
    }


def _headers(texts: Mapping[str, str]) -> _Json:
    return {
        name: {"description": text, "schema": {"type": "string"}} for name, text in texts.items()
    }


def _error(errors: Sequence[ApiError]) -> _Json:
    examples: _Json = {}
    for error in errors:
        told = json.loads(envelope(error, _REQUEST_ID))
        name, number = error.code, 1
        while name in examples:
            number += 1
            name = f"{error.code}-{number}"
        examples[name] = {"summary": error.text, "value": told}
    codes = list(dict.fromkeys(error.code for error in errors))
    schema = {
        "$ref": _REF.format(name="Error"),
        "properties": {"code": {"type": "string", "enum": codes}},
    }
    headers = {name: _HEADERS[name] for error in errors for name in error.headers}
    return {
        "description": ", ".join(f"`{code}`" for code in codes),
        "headers": _headers(headers) | _USUAL_HEADERS,
        "content": {JSON: {"schema": schema, "examples": examples}},
    }
