"""Operation: a declared route, and the types of its bodies, in the words of the document."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct

from codeq_cluster.api.declared.bodies import REF, DeclaredField, Schema
from codeq_cluster.api.declared.operations import COMMAND_SCHEMA, JSON, Answer, Operation
from codeq_cluster.api.declared.parameters import Parameter
from codeq_cluster.api.http.answer import HttpAnswer
from codeq_cluster.api.http.bodies import result_bytes_max
from codeq_cluster.api.http.errors import (
    ApiError,
    Envelope,
    auth_unavailable,
    envelope,
    from_access,
    from_failure,
    invalid_body,
)
from codeq_cluster.api.http.middleware import Handler
from codeq_cluster.api.http.refusals import (
    NEVER_STALE,
    STALLED,
    body_too_large,
    repeated,
    unknown_name,
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
_CROWDED = (Overloaded("a room"),)

_COMMANDS = {"command", "name"}  # The names of a command, and of a topic by its command, in paths.

_HEADERS = {
    "Retry-After": "Seconds to wait before the next try.",
    "WWW-Authenticate": "`Bearer`.",
    "X-Outcome": "`not-applied`: nothing was done.",
    "ETag": "Tag of the artifact's present content.",
    "Content-Range": "How many bytes the artifact has.",
}


def described(operation: Operation, settings: NodeSettings, schema_of: Mapping[str, Json]) -> Json:
    """Return an operation of the document.

    Args:
        operation: Its handler's docstring says what it does.
        settings: Of the node; they bound bodies.
        schema_of: The schema of each answer's body, by its type's text.
    """
    first, *more = inspect.cleandoc(operation.handler.__doc__ or "").split("\n\n")
    scope = operation.scope
    caller = _CALLER[operation.access] + (f" with the scope `{scope}`." if scope else "")
    made: Json = {
        "tags": [tag(operation)[0]],
        "operationId": operation_id(operation),
        "summary": first.removesuffix("."),
        "description": " ".join([first, *more, caller]),
        "security": [{"bearer": [scope] if scope else []}]
        if operation.access is not Access.OPEN
        else [],
        "parameters": [
            *_of_path(operation.path),
            *(_parameter(each, settings) for each in operation.parameters),
        ],
        "responses": {},
    }
    for each in operation.answers:
        answer = _answer(each, body_of(each, operation.handler), schema_of)
        earlier = made["responses"].setdefault(str(each.status), answer)
        if earlier is not answer:
            # The same status in another form.
            earlier["description"] += " " + answer["description"]
            earlier["content"] |= answer["content"]
    errors: dict[int, dict[str, ApiError]] = {}
    for error in (*_usual_errors(operation, settings), *operation.refusals(settings)):
        errors.setdefault(error.status, {}).setdefault(error.text, error)
    for status, by_text in sorted(errors.items()):
        made["responses"][str(status)] = _error(list(by_text.values()))
    if operation.body is not None:
        made["requestBody"] = _body(operation, settings)
    elif operation.binary:
        made["requestBody"] = {"required": True, "content": {"*/*": {"schema": {}}}}
    return made


def operation_id(operation: Operation) -> str:
    """Return the name of an operation: its feature and its function."""
    return f"{operation.feature}_{getattr(operation.handler, '__name__', '')}"


def tag(operation: Operation) -> tuple[str, str]:
    """Return the name of an operation's feature, and its description."""
    name, _, text = operation.about.strip().partition(": ")
    return name, text[:1].upper() + text[1:]


def _body(operation: Operation, settings: NodeSettings) -> Json:
    assert operation.body is not None
    schema: Json = {"$ref": REF.format(name=operation.body.body.__name__)}
    if operation.required:
        schema["required"] = list(operation.required)
        # Null is the same as absent.
        schema["properties"] = {name: {"not": {"type": "null"}} for name in operation.required}
    example = operation.example
    content = {"schema": schema, "example": example(settings) if callable(example) else example}
    return {"required": not operation.may_miss, "content": {JSON: content}}


def _answer(answer: Answer, body: object, schema_of: Mapping[str, Json]) -> Json:
    made: Json = {"description": answer.text} | _headers(answer.headers)
    if body is not None:
        content: Json = {"schema": schema_of[repr(body)]}
        if answer.example is not None:
            content["example"] = answer.example
        made["content"] = {answer.media: content}
    elif answer.media not in {"", JSON}:
        made["content"] = {answer.media: {"schema": {"type": "string"}}}
    return made


def _usual_errors(route: Operation, settings: NodeSettings) -> Iterable[ApiError]:
    """Yield the errors of requests that do not reach their handler, or that find no shard."""
    if route.access is not Access.OPEN:
        yield from map(from_access, _REFUSED)
        yield auth_unavailable()
    if route.queries is not None:
        once = [name for name, may_repeat in route.queries.items() if not may_repeat]
        yield unknown_name("unknown", tuple(route.queries))
        yield from map(repeated, once[:1])
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
    failed = _FAILED if route.replicated else _CROWDED if route.access is not Access.OPEN else ()
    yield from map(from_failure, failed)
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


def _parameter(parameter: Parameter, settings: NodeSettings) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.text.format(node=settings),
        "schema": parameter.schema,
    }


def _headers(texts: Mapping[str, str]) -> Json:
    """Return the key with the headers of an answer; those of every answer are in the preface."""
    told = {
        name: {"description": text, "schema": {"type": "string"}} for name, text in texts.items()
    }
    return {"headers": told} if told else {}


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
        **_headers(headers),
        "content": {JSON: {"schema": schema, "examples": examples}},
    }


Json = dict[str, Any]

_BODILESS = {204, 304}


def answers(operations: Sequence[Operation]) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the schema of each answer's body, by its type's text; and the components."""
    bodies = [
        body
        for each in operations
        for answer in each.answers
        if (body := body_of(answer, each.handler)) is not None
    ]
    described, components = msgspec.json.schema_components([*bodies, Envelope], ref_template=REF)
    components["Error"] = components.pop(Envelope.__name__)
    for component in components.values():
        if "enum" in component:
            component["type"] = "string"  # The library names only the members.
    return dict(zip(map(repr, bodies), described, strict=False)), components


def requests(operations: Sequence[Operation], settings: NodeSettings) -> dict[str, Json]:
    """Return the components of request bodies, on a node with these settings."""
    schemas = {
        each.body.__name__: each
        for operation in operations
        if operation.body is not None
        for each in with_items(operation.body)
    }
    _, components = msgspec.json.schema_components(
        map(_describable, schemas.values()), ref_template=REF
    )
    for name, schema in schemas.items():
        _complete(components[name], schema, settings)
    return components


def body_of(answer: Answer, handler: Handler) -> Any:
    """Return the type of an answer's body, None if it has none, or none in JSON."""
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


def with_items(schema: Schema[Any]) -> Iterator[Schema[Any]]:
    """Yield a body, and the bodies that are in its fields."""
    yield schema
    for field in schema.fields:
        for part in (field.said.each, field.said.inner):
            if part is not None:
                yield from with_items(part)


def _complete(component: Json, schema: Schema[Any], settings: NodeSettings) -> None:
    """Add what the type does not say."""
    # The decoder is strict for speed; bodies it refuses are read again without unknown fields.
    if schema.unknown is None:
        del component["additionalProperties"]
    component["required"] = [field.name for field in schema.fields if field.required]
    if schema.one_of:
        component["anyOf"] = [{"required": [name]} for name in schema.one_of]
    for field in schema.fields:
        component["properties"][field.name] |= field.facts(settings)


def _describable(schema: Schema[Any]) -> type[Struct]:
    """Return a copy that msgspec can describe: it cannot describe a default of raw JSON."""
    return msgspec.defstruct(
        schema.body.__name__,
        list(_plain(schema.fields)),
        namespace={"__doc__": schema.body.__doc__},
        forbid_unknown_fields=True,
        kw_only=True,
    )


def _plain(fields: Iterable[DeclaredField]) -> Iterator[tuple[str, Any, Any]]:
    for field in fields:
        kind = field.plain if field.required or field.plain is Raw else field.plain | None
        default = msgspec.NODEFAULT if field.required else field.default
        if isinstance(default, Raw):
            default = msgspec.json.decode(default)
        yield field.name, kind, msgspec.field(default=default)
