"""Operations: a feature's routes, each with the description of its requests and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

from codeq_cluster.api.declared.bodies import Refusal, Schema
from codeq_cluster.api.declared.parameters import Parameter
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.middleware import Handler, Route
from codeq_cluster.auth import Access
from codeq_cluster.core.bounds import COMMAND
from codeq_cluster.settings import NodeSettings

BASE = "/v1/codeq"
JSON = "application/json"
COMMAND_SCHEMA: Mapping[str, object] = {"type": "string", "pattern": f"^{COMMAND.pattern}$"}

H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Answer:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Route):
    """A route, and the description of its requests and answers.

    Attributes:
        feature: The feature's module, with which the operation's name in the document begins.
        about: The feature in words: `Name: what it is`.
        answers: Every answer that is not an error.
        body: The request's body; None for none, or for one that is not JSON.
        example: A body; a callable makes it of the node's settings.
        may_miss: The route serves a request without a body too.
        required: Fields this route needs beyond those that every user of the body needs.
        binary: The body is a file's content, of any type.
        parameters: Of query and headers.
        errors: The handler's own refusals, beside those of its fields and parameters.
        replicated: It asks a shard, which may be without a leader, overloaded or cut off.
    """

    feature: str
    about: str
    answers: tuple[Answer, ...]
    body: Schema[Any] | None
    example: object
    may_miss: bool
    required: tuple[str, ...]
    binary: bool
    parameters: tuple[Parameter, ...]
    errors: tuple[Refusal, ...]
    replicated: bool

    def refusals(self, settings: NodeSettings) -> Iterator[ApiError]:
        """Yield the refusals of this route alone, on a node with these settings."""
        for error in self.errors:
            yield error if isinstance(error, ApiError) else error(settings)
        for parameter in self.parameters:
            yield from parameter.refusals
        if self.body is not None:
            yield from self.body.refusals(settings)


def _queries(parameters: Iterable[Parameter]) -> dict[str, bool]:
    """Return the parameters of a query by name, and whether they may be repeated."""
    return {each.name: each.repeats for each in parameters if each.place == "query"}


# What these callers ask for in vain may delete too much, or show it. The clients of producers and
# workers may be codeQ's, and probes add what they cannot leave out.
_STRICT = frozenset({Access.ADMIN, Access.OPERATOR})


class Routes:
    """The routes of one feature, in the order of their declaration.

    An instance is a decorator of handlers: `@ROUTES("GET", "/admin/audit", Answer("A page."))`.

    Args:
        feature: Its module.
        about: The feature in words: `Name: what it is`.
        access: Who may call the routes, unless one says otherwise.
        base: The beginning of their paths.
    """

    def __init__(
        self, feature: str, about: str | None, access: Access, *, base: str = BASE
    ) -> None:
        self._feature = feature.rpartition(".")[2]
        self._about = about or ""
        self._access = access
        self._base = base
        self._operations: list[Operation] = []

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def __call__(
        self,
        method: str,
        path: str,
        *answers: Answer,
        access: Access | None = None,
        scope: str = "",
        body: Schema[Any] | None = None,
        example: object = None,
        may_miss: bool = False,
        required: tuple[str, ...] = (),
        binary: bool = False,
        parameters: tuple[Parameter, ...] = (),
        errors: tuple[Refusal, ...] = (),
        large: bool = False,
        stale: bool = False,
        whole: bool = False,
        replicated: bool = True,
    ) -> Callable[[H], H]:
        """Return the decorator that declares a handler's route; see `Route` and `Operation`."""

        def declare(handler: H) -> H:
            allowed = access or self._access
            operation = Operation(
                method,
                self._base + path,
                handler,
                allowed,
                scope,
                "" if body is None else body.refusal,
                large,
                stale,
                whole,
                _queries(parameters) if allowed in _STRICT else None,
                feature=self._feature,
                about=self._about,
                answers=answers,
                body=body,
                example=example,
                may_miss=may_miss,
                required=required,
                binary=binary,
                parameters=parameters,
                errors=errors,
                replicated=replicated,
            )
            self._operations.append(operation)
            return handler

        return declare
