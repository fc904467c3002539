"""Kinds: the types of keys' values, and their texts for errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from codeq_cluster.codec import membership

MIB = 2**20

_TRUE = {"true", "yes", "1"}
_FALSE = {"false", "no", "0"}

# Segments of the characters that S3 calls safe in a key; 256 in all leave room for an artifact's
# path.
_KEY_PREFIX = re.compile(r"(?!.*(^|/)\.{1,2}(/|$))[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*")
_KEY_PREFIX_CHARS_MAX = 256

# A header's name, RFC 9110 §5.6.2, and a value of visible characters, percent-encoded if need be.
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+ *= *[\x21-\x7e]+( [\x21-\x7e]+)*")


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A type of value.

    Attributes:
        allowed: The allowed values, for an error's text.
        parse: Converts a value of a file or the environment; raises ValueError for an invalid one.
    """

    allowed: str
    parse: Callable[[object], object]


def whole(low: int, high: int) -> ValueKind:
    """Whole numbers, low <= value <= high."""

    def parse(raw: object) -> object:
        if isinstance(raw, str) and re.fullmatch(r"[+-]?\d{1,19}", raw.strip()):
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
            raise ValueError
        return raw

    return ValueKind(f"a whole number, {low} to {high}", parse)


def number(low: float, high: float) -> ValueKind:
    """Numbers, low <= value <= high."""

    def parse(raw: object) -> object:
        if isinstance(raw, str):
            raw = float(raw)
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not low <= raw <= high:
            raise ValueError
        return float(raw)

    return ValueKind(f"a number, {low:g} to {high:g}", parse)


def choice(*options: str, aliases: Mapping[str, str] | None = None) -> ValueKind:
    """One of the options, in any case, or an alias of one."""
    meant = {option: option for option in options} | dict(aliases or {})
    shown = [
        " or ".join(word for word, option in meant.items() if option == each) for each in options
    ]

    def parse(raw: object) -> object:
        word = raw.strip().lower() if isinstance(raw, str) else ""
        if word not in meant:
            raise ValueError
        return meant[word]

    return ValueKind(f"one of {', '.join(shown)}", parse)


def member(enum: type[StrEnum]) -> ValueKind:
    """One member of an enumeration, by its value."""
    names = choice(*(option.value for option in enum))
    return ValueKind(names.allowed, lambda raw: enum(str(names.parse(raw))))


def _parse_flag(raw: object) -> object:
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError


def _parse_text(raw: object) -> object:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError
    return raw.strip()


def _text(allowed: str, fits: Callable[[str], object]) -> ValueKind:
    """Texts that fit."""

    def parse(raw: object) -> object:
        text = str(_parse_text(raw))
        if not fits(text):
            raise ValueError
        return text

    return ValueKind(allowed, parse)


def _parse_path(raw: object) -> object:
    try:
        return Path(str(_parse_text(raw))).expanduser()
    except RuntimeError as nobody:  # The home of a user who is not there.
        raise ValueError from nobody


def _parse_id(raw: object) -> object:
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise ValueError  # noqa: TRY004 - the one error of a parse
    if not membership.NODE_ID.fullmatch(str(raw)):
        raise ValueError
    return str(raw)


def _parse_url(raw: object) -> object:
    text = str(_parse_text(raw))
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise ValueError
    _ = parts.port  # raises ValueError for an invalid port
    return text.rstrip("/")


def _are_headers(text: str) -> bool:
    return all(_HEADER.fullmatch(part.strip()) for part in text.split(","))


def _parse_networks(raw: object) -> object:
    items = raw if isinstance(raw, list) else str(_parse_text(raw)).split(",")
    networks = [ip_network(str(item).strip()) for item in items]
    # Every address: any caller could name any other as the one it asks for.
    if not all(network.prefixlen for network in networks):
        raise ValueError
    return tuple(dict.fromkeys(map(str, networks)))


def _parse_hosts(raw: object) -> object:
    items = raw if isinstance(raw, list) else str(_parse_text(raw)).split(",")
    return tuple(dict.fromkeys(str(HOST.parse(item)).lower() for item in items))


def _parse_key_prefix(raw: object) -> object:
    text = str(_parse_text(raw)).strip("/")
    if len(text) > _KEY_PREFIX_CHARS_MAX or not _KEY_PREFIX.fullmatch(text):
        raise ValueError
    return text


def _parse_anything(raw: object) -> object:
    return raw


FLAG = ValueKind("true or false", _parse_flag)
TEXT = ValueKind("a text that is not empty", _parse_text)
PATH = ValueKind("a path", _parse_path)
ID = ValueKind("1 to 64 of A-Z a-z 0-9 . _ -, a letter or digit first", _parse_id)
HOST = _text("a host name or an IP address", lambda text: not re.search(r"[\s/=,]", text))
URL = ValueKind("an http or https URL without user and password", _parse_url)
ADDRESS = _text(membership.ADDRESS_ALLOWED, membership.ADDRESS.fullmatch)
LISTENING = _text(
    "host:port, or :port for every address of the machine, the port 1 to 65535",
    lambda text: membership.ADDRESS.fullmatch(f"localhost{text}" if text[0] == ":" else text),
)
# 16 random characters are about 80 bits: too many to guess over a network.
SECRET = _text("at least 16 characters", lambda text: len(text) >= 16)
HEADERS = _text("name=value,name=value", _are_headers)
NETWORKS = ValueKind(
    "a list of IP addresses and networks such as 10.0.0.0/8, in a text with commas between; not /0",
    _parse_networks,
)
HOSTS = ValueKind("a list of host names, in a text with commas between", _parse_hosts)
KEY_PREFIX = ValueKind("up to 256 of A-Z a-z 0-9 ! _ . * ' ( ) -, in segments", _parse_key_prefix)
ANYTHING = ValueKind("anything", _parse_anything)


def each(kind: ValueKind) -> ValueKind:
    """Return the kind of a table from node id to `kind`.

    A mapping, a list of `id=value`, or one text `id=value,id=value`.
    """

    def parse(raw: object) -> object:
        if isinstance(raw, str):
            raw = [part for part in raw.split(",") if part.strip()]
        if isinstance(raw, list):
            pairs = [str(item).partition("=")[::2] for item in raw]
        elif isinstance(raw, dict):
            pairs = [(str(key), value) for key, value in raw.items()]
        else:
            raise ValueError  # noqa: TRY004 - the one error of a parse
        table = {str(_parse_id(key.strip())): kind.parse(value) for key, value in pairs}
        if not table or len(table) != len(pairs):
            raise ValueError
        return table

    return ValueKind(
        f"id=value,id=value or a mapping; ids differ; each value {kind.allowed}", parse
    )
