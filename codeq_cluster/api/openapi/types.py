"""Types: the description of an operation beyond its route and its handler."""

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
    """A parameter of the query, or a header."""

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
    """A successful answer, or another one that is not an error in the usual envelope.

    Attributes:
        body: Type of the body, if a handler answers with one of several; None for the type in its
            signature.
        headers: The description of each header of this answer, by name.
    """

    text: str
    example: object = None
    _: KW_ONLY
    status: int = 200
    body: Any = None
    media: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class DescribedOperation:
    """The description of a handler's requests and answers.

    Args:
        answers: Every answer that is not an error.
        body: The request's body; None for none, or for one that is not JSON.
        binary: The body is a file's content, of any type.
        parameters: Of query and headers.
        errors: This handler's own refusals.
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
    """The description of a body's fields beyond their types.

    Attributes:
        required: Without them the body is refused by every route.
        one_of: Without any of them the body is refused.
        known: The description of each field, by its name in JSON.
        strict: The body may have no other field.
    """

    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    known: Mapping[str, Mapping[str, object]]
    strict: bool = False


# By handler, and by type of a body.
Operations = dict[Handler, DescribedOperation]
BodyFields = dict[type[Struct], Fields]


def said(text: str, **facts: object) -> Mapping[str, object]:
    """Return the description of one field."""
    return {"description": text, **facts}
