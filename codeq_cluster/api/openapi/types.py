"""Types: what is said of an operation beside its route and its handler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from msgspec import Struct

from codeq_cluster.api.http.call import COMMAND
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.middleware import Handler

JSON = "application/json"
Json = dict[str, Any]
COMMAND_SCHEMA: Mapping[str, object] = {"type": "string", "pattern": f"^{COMMAND.pattern}$"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing a caller may say beside path and body."""

    name: str
    place: str
    text: str
    schema: Mapping[str, object]
    required: bool = False


@dataclass(frozen=True, slots=True)
class DescribedBody:
    """A request's body.

    Attributes:
        required: Fields this route needs beyond those every user of the type needs.
        may_miss: The route serves a request without a body too.
    """

    type: type[Struct]
    example: object
    _: KW_ONLY
    required: tuple[str, ...] = ()
    may_miss: bool = False


@dataclass(frozen=True, slots=True)
class DescribedAnswer:
    """One answer that is no error in the usual envelope.

    Attributes:
        body: Type of the body, where a handler answers with one of several; None for the type that
            its signature names.
        headers: What each header of this answer's own says, by name.
    """

    text: str
    example: object = None
    _: KW_ONLY
    status: int = 200
    body: Any = None
    media: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class DescribedOperation:
    """What a handler takes and answers.

    Args:
        answers: Every answer that is no error.
        body: The request's body; None for none, or for one that is no JSON.
        binary: The body is a file's content, of any type.
        parameters: Of query and headers.
        errors: Refusals of this handler's own.
        replicated: It asks a shard, which may be without a leader, overloaded or cut off.
    """

    def __init__(
        self,
        *answers: DescribedAnswer,
        body: DescribedBody | None = None,
        binary: bool = False,
        parameters: tuple[Parameter, ...] = (),
        errors: tuple[ApiError, ...] = (),
        replicated: bool = True,
    ) -> None:
        self.answers = answers
        self.body = body
        self.binary = binary
        self.parameters = parameters
        self.errors = errors
        self.replicated = replicated


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


# What each handler takes and answers, and what bodies' types do not say.
Operations = dict[Handler, DescribedOperation]
BodyFields = dict[type[Struct], Fields]


def said(text: str, **facts: object) -> Mapping[str, object]:
    """Return what is said of one field."""
    return {"description": text, **facts}
