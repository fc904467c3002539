"""Parameters: of the query and of headers, declared once to be read and to be described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.refusals import bounded, no_flag, no_integer, too_high, too_low

_WORDS = {"false": False, "0": False, "true": True, "1": True}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, or a header.

    Attributes:
        place: `query` or `header`.
        text: A limit in braces is one of the `node`'s settings.
        refusals: Those that it can cause.
    """

    name: str
    place: str
    text: str
    schema: Mapping[str, object]
    required: bool
    refusals: tuple[ApiError, ...]

    @property
    def repeats(self) -> bool:
        """Return whether it may be there several times."""
        return self.schema["type"] == "array"

    def flag(self, call: Call) -> bool:
        """Return a flag; an empty value does not mean false: it may guard a deletion.

        Raises:
            ApiError: 400; the value is neither true nor false.
        """
        if self.name not in call.request.query:
            return False
        said = call.query_text(self.name)
        if said not in _WORDS:
            raise no_flag(self.name)
        return _WORDS[said]


@dataclass(frozen=True, slots=True)
class Whole(Parameter):
    """A parameter that is an integer within bounds."""

    least: int
    most: int

    def read(self, call: Call) -> int | None:
        """Return the number, or None when it is absent or empty.

        Raises:
            ApiError: 400; it is not an integer within the bounds.
        """
        if not call.query_text(self.name):
            return None
        number = call.query_integer(self.name)
        return bounded(self.name, number, least=self.least, most=self.most)


def query(
    name: str, text: str, *refusals: ApiError, required: bool = False, **schema: object
) -> Parameter:
    """Return a query parameter: a text, unless `type` says otherwise."""
    schema = {"type": "string"} | schema
    usual = {"integer": (no_integer(name),), "boolean": (no_flag(name),)}
    return Parameter(
        name, "query", text, schema, required, refusals or usual.get(str(schema["type"]), ())
    )


def several(name: str, text: str, *refusals: ApiError) -> Parameter:
    """Return a query parameter that is a text, and may be repeated."""
    return query(name, text, *refusals, type="array", items={"type": "string"})


def whole(name: str, text: str, *, least: int, most: int, **schema: object) -> Whole:
    """Return a query parameter that is an integer within bounds."""
    facts = {"type": "integer", "minimum": least, "maximum": most, **schema}
    refusals = (no_integer(name), too_low(name, least), too_high(name, most))
    return Whole(name, "query", text, facts, False, refusals, least, most)


def header(name: str, text: str, *refusals: ApiError, **schema: object) -> Parameter:
    """Return a header that a caller may send: a text, unless `type` says otherwise."""
    return Parameter(name, "header", text, {"type": "string"} | schema, False, refusals)
