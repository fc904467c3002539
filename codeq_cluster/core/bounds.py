"""Bounds: what each text and number of a record may be, whichever way it comes in.

The annotation of a record's field holds its bound. A request, an import and a restore are held to
the same ones. A limit that operators may set, such as `limits.maxAttemptsMax`, binds requests
alone. Its bound here is the largest value that any configuration allows: a record may come from a
cluster with larger settings than this one's, and refusing it would keep its whole tenant out. Every
operation fits the log with the bounds here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import cache
from itertools import accumulate
from typing import Annotated, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta, Struct

# The largest values of settings.
BODY_BYTES_MAX = 64 * 2**20
ERROR_BYTES_MAX = 2**20
KEY_BYTES_MAX = 4096
ATTEMPTS_MAX = 1_000_000
JSON_DEPTH_MAX = 900
DELIVERY_ATTEMPTS_MAX = 100

SUBJECT_BYTES_MAX = 1024  # It is kept with every lease and every attempt.
REASON_CHARS_MAX = 1024  # The history keeps one for each attempt; a result keeps the whole error.
URL_CHARS_MAX = 2048  # HTTP servers commonly accept this much in a request line.
TRACE_STATE_CHARS_MAX = 512  # W3C Trace Context §3.3.1.5: propagate at least this much.
AUDIT_BYTES_MAX = 4096

# What an operation on one task writes at most, beside a payload or a result that comes with it: the
# task with its history, a callback and a sweep for each upload. Every entry has room for it.
EFFECTS_BYTES_MAX = 256 * 1024

# The last millisecond of the year 9999; RFC 3339 has no later instant.
NUMBER_MAX = 253_402_300_799_999
SEQ_MAX = 2**63 - 1

TENANT = re.compile(r"[a-z][a-z0-9-]{1,62}")
# A command, a queue, a task's id in a path and a request's id are written alike.
COMMAND = re.compile(r"[A-Za-z0-9._:-]{1,128}")
COMMAND_WORDS = "1 to 128 of A-Za-z0-9._:-"
# Without the dot, which divides the id of a callback or of a sweep.
TASK_ID = re.compile(r"[A-Za-z0-9_:-]{1,128}")
UPLOAD_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
# Two processes under one token are two workers for people, and one for the rules of leases.
WORKER_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
# W3C Trace Context §3.2.2: version ff and ids of zeros only are invalid.
TRACE_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_URL = re.compile(r"https?://[^/?#@]+([/?#].*)?", re.IGNORECASE)

_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEP = {ord("["): 1, ord("]"): -1}

# Returns what a value must be; empty if it is that.
Bound = Callable[[object], str]


def is_queue_name(text: str) -> bool:
    """Return whether a new queue may have this name, as a command or a topic.

    A client, browser or proxy resolves `.` and `..` in a path, so nobody could ask for such a
    queue. Where one exists, it can still be worked on.
    """
    return COMMAND.fullmatch(text) is not None and text not in (".", "..")


def is_url(text: str) -> bool:
    """Return whether a text has the form of a target of calls; its host is checked elsewhere."""
    return (
        len(text) <= URL_CHARS_MAX
        and text.isprintable()
        and " " not in text
        and _URL.fullmatch(text) is not None
    )


def is_trace_state(text: str) -> bool:
    """Return whether a text can be stored and forwarded as a trace's state."""
    return len(text) <= TRACE_STATE_CHARS_MAX and text.isascii() and text.isprintable()


def is_json(text: str) -> bool:
    """Return whether a text is one JSON value, nested no deeper than the bound."""
    if is_deeper(text, JSON_DEPTH_MAX):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def is_deeper(text: str, depth_max: int) -> bool:
    """Return whether brackets nest deeper than the bound."""
    # Counting brackets is cheap; only a text with many of them is parsed.
    return text.count("[") + text.count("{") > depth_max and depth(text) > depth_max


def depth(text: str) -> int:
    """Return how deep brackets nest in a JSON text, ignoring strings.

    Each step processes the whole text in C, because anybody may send a megabyte of brackets. That
    takes about 5 ms, 40 ms in the worst case.
    """
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    outside = "".join(unescaped.split('"')[::2])
    brackets = outside.encode(errors="replace").translate(_ALIKE, _NO_BRACKETS)
    levels = 0
    # Removing the innermost pairs makes a text one level less deep; it pays while there are many.
    while 4 * len(left := brackets.replace(b"[]", b"")) < 3 * len(brackets):
        brackets = left
        levels += 1
    return levels + max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


@cache
def bounds_of(record: type[Struct]) -> Mapping[str, Bound]:
    """Return the bound of each field of a record, except of flags and enumerations."""
    bounds: dict[str, Bound] = {}
    hints = get_type_hints(record, include_extras=True)
    for field in record.__struct_fields__:
        hint = hints[field]
        if not (isinstance(hint, type) and issubclass(hint, bool | Enum)):
            [bounds[field]] = (each for each in hint.__metadata__ if not isinstance(each, Meta))
    return bounds


def broken(record: Struct) -> str:
    """Return the first field of a record that breaks its bound, with what is allowed, or ""."""
    for field, bound in bounds_of(type(record)).items():
        allowed = bound(getattr(record, field))
        if allowed:
            return f"{field}: {allowed}"
    return ""


def whole(least: int, most: int) -> Bound:
    """Return the bound of numbers, least <= value <= most."""
    allowed = f"must be {least} to {most}"
    return lambda value: "" if isinstance(value, int) and least <= value <= most else allowed


def that(holds: Callable[[str], object], allowed: str, *, empty: bool = False) -> Bound:
    """Return the bound of texts for which a predicate holds, and perhaps of the empty one."""
    allowed = f"must be {allowed}{', or empty' if empty else ''}"

    def bound(value: object) -> str:
        fits = isinstance(value, str) and (holds(value) if value else empty)
        return "" if fits else allowed

    return bound


def text(bytes_max: int, *, empty: bool = True) -> Bound:
    """Return the bound of texts of at most so many bytes of UTF-8."""

    def holds(value: str) -> bool:
        if len(value) > bytes_max:
            return False
        try:
            return value.isascii() or len(value.encode()) <= bytes_max
        except UnicodeEncodeError:  # A lone surrogate.
            return False

    allowed = "text of at most" if empty else "text of 1 to"
    bound = that(holds, f"{allowed} {bytes_max} bytes")
    return lambda value: "" if value == "" and empty else bound(value)


def summary(chars_max: int) -> Bound:
    """Return the bound of texts that were cut to so many characters."""
    fits = text(4 * chars_max)
    allowed = f"must be text of at most {chars_max} characters"
    return lambda value: (
        allowed if fits(value) or (isinstance(value, str) and len(value) > chars_max) else ""
    )


def listed(count_max: int, each: Bound, *, unique: bool = True) -> Bound:
    """Return the bound of lists of values that are there once, unless said otherwise."""

    def bound(values: object) -> str:
        assert isinstance(values, tuple)
        if len(values) > count_max:
            return f"must have at most {count_max} entries"
        if unique and len(set(values)) < len(values):
            return "must have each entry once"
        return next(filter(None, map(each, values)), "")

    return bound


def sound(value: object) -> str:
    """Bound a record by its fields."""
    assert isinstance(value, Struct)
    return broken(value)


def sound_or_none(value: object) -> str:
    """Bound a record by its fields, where there is one."""
    return "" if value is None else sound(value)


def one_of(values: Collection[str]) -> Bound:
    """Return the bound of these texts."""
    return that(values.__contains__, " or ".join(values))


def anything(_value: object) -> str:
    """Bound nothing."""
    return ""


NUMBER = whole(0, NUMBER_MAX)
NAME = that(COMMAND.fullmatch, COMMAND_WORDS)
ID = that(TASK_ID.fullmatch, "1 to 128 of A-Za-z0-9_:-")
OWNER = that(TENANT.fullmatch, "2 to 63 of a-z0-9-, a letter first", empty=True)
QUEUE = that(
    lambda name: COMMAND.fullmatch(name) and name == name.lower(), "1 to 128 of a-z0-9._:-"
)
DIGEST = that(re.compile(r"[0-9a-f]{32}").fullmatch, "a digest", empty=True)
UPLOAD = that(UPLOAD_ID.fullmatch, "1 to 40 of A-Za-z0-9_-")
_URL_MUST_BE = f"an http or https URL of at most {URL_CHARS_MAX} characters, without a user"

# The fields of records that have bounds of their own. Those that end in `OrNone` may be empty.
Number: TypeAlias = Annotated[int, NUMBER]
Instant: TypeAlias = Annotated[int, NUMBER]
Seq: TypeAlias = Annotated[int, whole(0, SEQ_MAX)]
Id: TypeAlias = Annotated[str, ID]
IdOrNone: TypeAlias = Annotated[str, lambda name: ID(name) if name else ""]
Owner: TypeAlias = Annotated[str, OWNER]
Name: TypeAlias = Annotated[str, NAME]
NameOrNone: TypeAlias = Annotated[str, that(COMMAND.fullmatch, COMMAND_WORDS, empty=True)]
Queue: TypeAlias = Annotated[str, QUEUE]
# What tasks are counted together by: their queue, or the limit that several queues share.
_SCOPE = re.compile(r"@?[a-z0-9._:-]{1,128}")
_SCOPE_WORDS = "a queue, or @ and a limit"
Scope: TypeAlias = Annotated[str, that(_SCOPE.fullmatch, _SCOPE_WORDS)]
ScopeOrNone: TypeAlias = Annotated[str, that(_SCOPE.fullmatch, _SCOPE_WORDS, empty=True)]
QueueOrNone: TypeAlias = Annotated[str, lambda name: QUEUE(name) if name else ""]
Subject: TypeAlias = Annotated[str, text(SUBJECT_BYTES_MAX)]
WorkerName: TypeAlias = Annotated[
    str, that(WORKER_NAME.fullmatch, "1 to 128 of A-Za-z0-9._:@-", empty=True)
]
Upload: TypeAlias = Annotated[str, UPLOAD]
Error: TypeAlias = Annotated[str, text(ERROR_BYTES_MAX)]
Reason: TypeAlias = Annotated[str, summary(REASON_CHARS_MAX)]
JsonOrNone: TypeAlias = Annotated[
    str,
    that(
        lambda value: len(value) <= BODY_BYTES_MAX and is_json(value),
        f"JSON, nested at most {JSON_DEPTH_MAX} deep",
        empty=True,
    ),
]
Url: TypeAlias = Annotated[str, that(is_url, _URL_MUST_BE)]
UrlOrNone: TypeAlias = Annotated[str, that(is_url, _URL_MUST_BE, empty=True)]
TraceParent: TypeAlias = Annotated[
    str, that(TRACE_PARENT.fullmatch, "a traceparent of W3C Trace Context", empty=True)
]
TraceState: TypeAlias = Annotated[
    str, that(is_trace_state, f"printable ASCII, at most {TRACE_STATE_CHARS_MAX}", empty=True)
]
