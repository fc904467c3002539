"""Components: the schemas of bodies, generated from the types that decode and encode them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct

from codeq_cluster.api.http.answer import HttpAnswer
from codeq_cluster.api.http.errors import Envelope
from codeq_cluster.api.http.middleware import Handler
from codeq_cluster.api.openapi.types import (
    JSON,
    BodyFields,
    DescribedAnswer,
    Fields,
    Json,
    Operations,
)

REF = "#/components/schemas/{name}"

_BODILESS = {204, 304}


def answers(known: Operations) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the schema of each answer's body, by its type's text; and the components."""
    bodies = [
        body
        for handler, each in known.items()
        for answer in each.answers
        if (body := body_of(answer, handler)) is not None
    ]
    described, components = msgspec.json.schema_components([*bodies, Envelope], ref_template=REF)
    components["Error"] = components.pop(Envelope.__name__)
    for component in components.values():
        if "enum" in component:
            component["type"] = "string"  # The library names only the members.
    return dict(zip(map(repr, bodies), described, strict=False)), components


def requests(known: BodyFields) -> dict[str, Json]:
    """Return the components of request bodies."""
    described = map(_describable, known)
    _, components = msgspec.json.schema_components(described, ref_template=REF)
    for body, said in known.items():
        _complete(components[body.__name__], said)
    return components


def body_of(answer: DescribedAnswer, handler: Handler) -> Any:
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


def _complete(schema: Json, said: Fields) -> None:
    """Add the description beyond the type."""
    # The decoder is strict for speed; bodies it refuses are read again without unknown fields.
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


def _describable(body: type[Struct]) -> type[Struct]:
    """Return a copy that msgspec can describe: it cannot describe a default of raw JSON."""
    return msgspec.defstruct(
        body.__name__,
        [
            (each.name, each.type, msgspec.field(name=each.encode_name, default=_plain(each)))
            for each in msgspec.structs.fields(body)
        ],
        namespace={"__doc__": body.__doc__},
        forbid_unknown_fields=True,
    )


def _plain(field: msgspec.structs.FieldInfo) -> object:
    default = field.default
    return msgspec.json.decode(default) if isinstance(default, Raw) else default
