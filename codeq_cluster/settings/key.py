"""Key: one setting's names in a file and in the environment, said beside its field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from codeq_cluster.settings.kinds import ValueKind

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

# Before the last capital of `HTTPAddrs`, before the first of `selfId`.
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NEXT_WORD = re.compile(r"_([a-z])")

# In a field's metadata.
_KEY, _MADE_FROM, _SECTION, _NAME, _SUBJECT = "key", "made_from", "section", "name", "subject"


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One key.

    In a class that several sections use, `{section}` in the meaning stands for the name of the
    section, and `{subject}` for the words that the section gives to `section`.

    Attributes:
        name: In a file, dots between levels; by default, the section's and the field's.
        meaning: One phrase, for the documentation.
        env: The variable; by default the name's. For a secret, the same with `_FILE` names the file
            that holds it.
        secret: Never printed, even if it is wrong.
        path: Its field's place in `NodeSettings`, or empty if `config` makes the field from keys.
        default: Of its field, or None.
    """

    name: str
    kind: ValueKind
    meaning: str
    env: str = ""
    secret: bool = False
    path: str = ""
    default: object = None


def key(
    default: T,
    kind: ValueKind,
    meaning: str,
    *,
    name: str = "",
    env: str = "",
    secret: bool = False,
) -> T:
    """Return a dataclass field whose value is the key's."""
    metadata = value_of(kind, meaning, name=name, env=env, secret=secret)
    return field(default=default, repr=not secret, metadata=metadata)


def value_of(
    kind: ValueKind, meaning: str, *, name: str = "", env: str = "", secret: bool = False
) -> Mapping[str, object]:
    """Return the metadata of a field without a default whose value is the key's."""
    return {_KEY: SettingKey(name, kind, meaning, env, secret)}


def made_from(*keys: SettingKey) -> Mapping[str, object]:
    """Return the metadata of a field that `config` makes from the keys."""
    return {_MADE_FROM: keys}


def section(settings: type[T], subject: str = "", *, name: str | None = None) -> T:
    """Return a dataclass field that is a section, by default with the defaults of all its fields.

    Args:
        subject: Stands for `{subject}` in the meanings of its keys.
        name: Of the section in a file, empty for its top level; by default the field's.
    """
    metadata = {_SECTION: settings, _SUBJECT: subject, _NAME: name}
    return field(default=settings(), metadata=metadata)


def section_of(each: Field[Any]) -> type[DataclassInstance] | None:
    """Return the class of a field that is a section, or None for another field."""
    return each.metadata.get(_SECTION)


def keys_of(
    settings: type[DataclassInstance], path: str = "", name: str = "", subject: str = ""
) -> Iterator[SettingKey]:
    """Yield every key of a settings class, in the order of its fields."""

    def placed(
        each: SettingKey, usual: str = "", path: str = "", default: object = None
    ) -> SettingKey:
        full = each.name or usual
        return replace(
            each,
            name=full,
            meaning=each.meaning.format(section=name, subject=subject),
            env=each.env or variable_of(full),
            path=path,
            default=default,
        )

    for each in fields(settings):
        at = _below(path, each.name)
        usual = _below(name, _NEXT_WORD.sub(lambda found: found[1].upper(), each.name))
        if inner := section_of(each):
            given = each.metadata[_NAME]
            within = usual if given is None else given
            yield from keys_of(inner, at, within, each.metadata[_SUBJECT])
        elif _KEY in each.metadata:
            default = None if each.default is MISSING else each.default
            yield placed(each.metadata[_KEY], usual, at, default)
        else:
            yield from map(placed, each.metadata.get(_MADE_FROM, ()))


def _below(upper: str, name: str) -> str:
    return f"{upper}.{name}" if upper else name


def variable_of(name: str) -> str:
    """Return the variable of a key: `raft.peerHTTPAddrs` is `RAFT_PEER_HTTP_ADDRS`."""
    return _WORD.sub("_", name).replace(".", "_").upper()
