"""Types: of what is said of an operation beside its route and its handler's docstring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from codeq_cluster.api.http.call import COMMAND
from codeq_cluster.api.http.errors import ApiError

JSON = "application/json"
COMMAND_SCHEMA: Mapping[str, object] = {"type": "string", "pattern": f"^{COMMAND.pattern}$"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One thing a caller may say beside path and body."""

    name: str
    place: str
    text: str
    schema: Mapping[str, object]
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedAnswer:
    """One answer that is no error in the usual envelope.

    Attributes:
        body: Type of the body, where a handler answers with one of several; None for the type that
            its signature names.
        headers: What each header of this answer's own says, by name.
    """

    text: str
    status: int = 200
    body: Any = None
    example: object = None
    media: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedOperation:
    """What a handler takes and answers.

    Attributes:
        required: Fields this route needs beyond those every user of the body needs.
        body_may_miss: The route serves a request without a body too.
        binary: The body is a file's content, of any type.
        errors: Refusals of this handler's own.
        replicated: It asks a shard, which may be without a leader, overloaded or cut off.
    """

    body: type[Struct] | None = None
    required: tuple[str, ...] = ()
    body_may_miss: bool = False
    binary: bool = False
    example: object = None
    parameters: tuple[Parameter, ...] = ()
    answers: tuple[DescribedAnswer, ...]
    errors: tuple[ApiError, ...] = ()
    replicated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """What a body's type does not say of its fields.

    Attributes:
        required: Without them the body is refused, whatever the route.
        one_of: Without any of them the body is refused.
        known: What is to be said of each field, by its name in JSON.
        strict: The body may have no field beside these.
    """

    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    known: Mapping[str, Mapping[str, object]]
    strict: bool = False
