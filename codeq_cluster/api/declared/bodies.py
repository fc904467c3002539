"""Bodies: declared by their fields, and decoded as leniently as the reference's decoder does.

Field names match in any case, unknown fields are ignored, null is the same as absent, and the last
of duplicated fields wins. Payloads and results keep the text that was sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Raw, Struct, StructMeta
from msgspec.structs import FieldInfo

from codeq_cluster.api.http.errors import ApiError, invalid_body
from codeq_cluster.api.http.refusals import too_high, too_low, too_many
from codeq_cluster.core.bounds import is_deeper
from codeq_cluster.settings import NodeSettings

REF = "#/components/schemas/{name}"

_INT64 = range(-(2**63), 2**63)

B = TypeVar("B", bound="Body")
E = TypeVar("E", bound=StrEnum)

# Some name a limit of the settings.
Refusal = ApiError | Callable[[NodeSettings], ApiError]


@dataclass(frozen=True, slots=True)
class Field:
    """What a body's field is, and its bounds.

    Attributes:
        text: A limit in braces is one of the `node`'s settings.
        default: Its value when absent; `NODEFAULT` if the decoder needs the field.
        ge: The least number.
        le: The greatest number.
        min_length: Of a text or a list.
        max_length: Of a list.
        pattern: What a text must match as a whole.
        refused: The field's refusals, the first for a value that is missing or out of bounds.
            None: they follow from the bounds.
        required: Bodies without the field are refused, though its type has a default.
        each: The schema of a list's items, which the handler decodes one by one.
        inner: The schema of an object, which the handler decodes as well.
        all_or_none: The refusal of one item is that of the body.
        schema: Further facts in JSON Schema, which the handler checks. A callable makes a fact of
            the node's settings.
    """

    text: str
    _: KW_ONLY
    default: object = None
    ge: int | None = None
    le: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: re.Pattern[str] | None = None
    refused: tuple[Refusal, ...] | None = None
    required: bool = False
    each: Schema[Any] | None = None
    inner: Schema[Any] | None = None
    all_or_none: bool = False
    schema: Mapping[str, object]

    @property
    def checked(self) -> bool:
        """Return whether it has bounds that `fault` checks."""
        bounds = (self.ge, self.le, self.min_length, self.max_length, self.pattern)
        return any(bound is not None for bound in bounds)

    def facts(self, settings: NodeSettings, *, of_list: bool) -> dict[str, Any]:
        """Return the text and the bounds as keys of JSON Schema."""
        size = "Items" if of_list else "Length"
        bounds = {
            "minimum": self.ge,
            "maximum": self.le,
            f"min{size}": self.min_length,
            f"max{size}": self.max_length,
            "pattern": self.pattern and f"^{self.pattern.pattern}$",
        }
        facts: dict[str, Any] = {"description": self.text.format(node=settings)}
        facts |= {name: bound for name, bound in bounds.items() if bound is not None}
        for name, fact in self.schema.items():
            facts[name] = fact(settings) if callable(fact) else fact
        if self.inner is not None:
            ref = {"$ref": REF.format(name=self.inner.body.__name__)}
            facts["anyOf"] = [ref, {"type": "null"}]
        if self.each is not None:
            ref = {"$ref": REF.format(name=self.each.body.__name__)}
            facts["items"] = ref | facts.get("items", {})
        return facts

    def fault(self, name: str, value: Any, unreadable: ApiError) -> ApiError | None:
        """Return the refusal of a value that is out of bounds; None for others, and for None."""
        if value is None:
            return None
        if isinstance(value, int) and value not in _INT64:
            usual = _too_wide(name, unreadable)
        elif self.ge is not None and value < self.ge:
            usual = too_low(name, self.ge)
        elif self.le is not None and value > self.le:
            usual = too_high(name, self.le)
        elif self.max_length is not None and len(value) > self.max_length:
            usual = too_many(name, self.max_length)
        elif (self.min_length is not None and len(value) < self.min_length) or (
            self.pattern is not None and not self.pattern.fullmatch(value)
        ):
            usual = unreadable.because(f"{name}: is empty, or has another form")
        else:
            return None
        return next((each for each in self.refused or () if isinstance(each, ApiError)), usual)


def field(text: str, **said: Any) -> Any:
    """Declare a field of a body, beside its type; see `Field`.

    Keywords that it does not have are its `schema`, and so is a pattern that is a text.
    """
    own = {name: said.pop(name) for name in Field.__dataclass_fields__ if name in said}
    if isinstance(own.get("pattern"), str):
        said["pattern"] = own.pop("pattern")
    return Field(text, schema=said, **own)


def raw_field(text: str, **said: Any) -> Any:
    """Declare a field whose JSON is read later, and is null when absent; see `field`."""
    return field(text, default=Raw(b"null"), **said)


class _Declaring(StructMeta):
    """Keeps what the fields of a class are, and makes a struct of their types and defaults."""

    def __new__(  # noqa: PYI034, a metaclass has no Self
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]
    ) -> _Declaring:
        said = {name: each for name, each in namespace.items() if isinstance(each, Field)}
        for attribute, each in said.items():
            if each.default is NODEFAULT:
                del namespace[attribute]
            else:
                namespace[attribute] = each.default
        of_bases = [each for base in bases for each in getattr(base, "__said__", {}).items()]
        namespace["__said__"] = dict(of_bases) | said
        return super().__new__(
            cls, name, bases, namespace, rename="camel", forbid_unknown_fields=True, kw_only=True
        )


class Body(Struct, metaclass=_Declaring):
    """A request's body; each field is its type and a `field`. Absent and null mean the same."""


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """One field of a body, with its type.

    Attributes:
        attribute: Its name in the struct.
        name: As it is sent.
        plain: Its type without None.
        default: `NODEFAULT` if the decoder needs the field.
    """

    attribute: str
    name: str
    plain: Any
    default: object
    said: Field

    @property
    def required(self) -> bool:
        """Return whether a body without the field is refused."""
        return self.said.required or self.default is NODEFAULT

    def facts(self, settings: NodeSettings) -> dict[str, Any]:
        """Return the text and the bounds as keys of JSON Schema."""
        return self.said.facts(settings, of_list=get_origin(self.plain) is list)

    def refusals(self, settings: NodeSettings) -> list[ApiError]:
        """Return the refusals that this field alone can cause, beside those of its type."""
        own, within = self.said.refused, self.said.inner
        if self.said.all_or_none:
            within = self.said.each
        if own is not None:
            made = [each if isinstance(each, ApiError) else each(settings) for each in own]
            return [*made, *(() if within is None else within.refusals(settings))]
        facts = self.facts(settings)
        usual = {"minimum": too_low, "maximum": too_high, "maxItems": too_many}
        return [make(self.name, facts[name]) for name, make in usual.items() if name in facts]


class Schema(Generic[B]):
    """One kind of body: decodes it, checks its fields and describes them.

    A body with exact field names takes one pass. Otherwise a second pass drops unknown fields and
    folds case.

    Args:
        body: Of which the handler gets an instance.
        refusal: The text of the refusal of a body that cannot be read.
        unknown: Makes the refusal of an unknown field, given it and the known ones; None to ignore
            unknown fields.
        one_of: A body without any of these fields is refused.
    """

    def __init__(
        self,
        body: type[B],
        *,
        refusal: str = "invalid body",
        unknown: Callable[[str, tuple[str, ...]], ApiError] | None = None,
        one_of: tuple[str, ...] = (),
    ) -> None:
        self.body = body
        self.refusal = refusal
        self.unreadable = invalid_body(refusal)
        self.unknown = unknown
        self.one_of = one_of
        self.fields = tuple(_declared(body, each) for each in msgspec.structs.fields(body))
        self.names = tuple(each.name for each in self.fields)
        self._exact = msgspec.json.Decoder(body)
        self._folded = {name.lower(): name for name in self.names}
        self._checked = tuple(each for each in self.fields if each.said.checked)

    def decode(self, text: str | Raw) -> B:
        """Read a body.

        Args:
            text: The body, valid UTF-8.

        Raises:
            ApiError: 400 or 422; the body or one of its fields is refused.
        """
        try:
            body = self._exact.decode(text)
        except msgspec.ValidationError:
            body = self._decode_again(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as malformed:
            raise self.unreadable.because(_malformed(text, malformed)) from malformed
        for each in self._checked:
            fault = each.said.fault(each.name, getattr(body, each.attribute), self.unreadable)
            if fault is not None:
                raise fault
        return body

    def decode_any(self, text: str) -> B:
        """Read a body that may be missing or null, which count as empty; raises as `decode`."""
        text = text.strip()
        return self.decode("{}" if text in _EMPTY else text)

    def refusals(self, settings: NodeSettings) -> Iterator[ApiError]:
        """Yield the refusals of this body's fields, on a node with these settings."""
        for each in self.fields:
            yield from each.refusals(settings)

    def _decode_again(self, text: str | Raw) -> B:
        """Read a body without unknown fields and nulls, and with the fields' exact names."""
        known = {}
        stranger = None
        try:
            found = _objects.decode(text)
            if len(found) > _FIELDS_MAX:
                raise self.unreadable.because(f"more than {_FIELDS_MAX} fields")
            for name, value in found.items():
                exact = self._folded.get(name.lower())
                if exact is None:
                    stranger = stranger or name
                else:
                    known[exact] = value
            known = {name: value for name, value in known.items() if bytes(value) != b"null"}
            body = self._exact.decode(msgspec.json.encode(known))
        except (msgspec.DecodeError, RecursionError) as malformed:
            raise self.unreadable.because(_malformed(text, malformed)) from malformed
        if stranger is not None and self.unknown is not None:
            raise self.unknown(stranger, self.names)
        return body


def _declared(body: type[Body], info: FieldInfo) -> DeclaredField:
    plain = info.type
    if NoneType in get_args(plain):
        [plain] = [each for each in get_args(plain) if each is not NoneType]
    said: dict[str, Field] = getattr(body, "__said__")  # noqa: B009, the metaclass made it
    told = said.get(info.name) or Field("", schema={})
    return DeclaredField(info.name, info.encode_name, plain, info.default, told)


def _malformed(text: str | Raw, error: Exception) -> str:
    """Return what is wrong with a text that is no JSON, where the decoder says it in its words."""
    said = str(error)
    if isinstance(text, str) and text.startswith(_BYTE_ORDER_MARK):
        return "begins with a byte order mark: send it without"
    if _OF_HALVES.search(said) and _HALF.search(bytes(Raw(text)).decode()):
        return f"has half of a surrogate pair, such as \\ud800: send whole characters ({said})"
    return said


_BYTE_ORDER_MARK = "\ufeff"
_HALF = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_OF_HALVES = re.compile("truncated|hex escape|surrogate pair")
_EMPTY = ("", "null")
_FIELDS_MAX = 1000  # Unknown ones included.
_objects = msgspec.json.Decoder(dict[str, Raw])


def json_text(value: Raw, name: str, *, depth_max: int, error: str) -> str:
    """Return the JSON text of a field as it was sent, empty when it is absent or null.

    `depth_max` is `limits.payloadDepthMax`.

    Raises:
        ApiError: 400 when it nests deeper than `depth_max`.
    """
    text = bytes(value).decode()
    if text == "null":
        return ""
    # Nothing is nested deeper than it is long.
    if len(text) > depth_max and is_deeper(text, depth_max):
        raise invalid_body(error).because(
            f"{name}: nests deeper than {depth_max} (limits.payloadDepthMax)"
        )
    return text


def whole(name: str, value: int | None, *, error: ApiError) -> int:
    """Return an integer field, 0 when absent.

    Raises:
        ApiError: The given error, which names the field, for a number beyond 64 bits.
    """
    if value is None:
        return 0
    if value not in _INT64:
        raise _too_wide(name, error)
    return value


def _too_wide(name: str, error: ApiError) -> ApiError:
    return error.because(f"{name}: must fit into 64 bits")


def chosen(
    of: type[E], name: str, value: str | None, refusal: Callable[[str, Iterable[str]], ApiError]
) -> E | None:
    """Return the member that a field's text names, None for none.

    `refusal` returns the error for other texts, given the field's name and the words it may have.
    """
    try:
        return None if value is None else of(value)
    except ValueError as unknown:
        raise refusal(name, of) from unknown


def instant_ms(text: str, *, error: ApiError) -> int:
    """Return an instant of RFC 3339 as Unix milliseconds.

    Raises:
        ApiError: The given error, for anything else.
    """
    try:
        instant = msgspec.convert(text, datetime)
        if instant.tzinfo is None or text[10] not in "Tt":
            raise error
        unix_s = instant.astimezone(UTC).timestamp()  # Raises beyond the years 1 to 9999.
    except (msgspec.ValidationError, OverflowError, ValueError) as malformed:
        raise error from malformed
    return round(unix_s * 1000)
