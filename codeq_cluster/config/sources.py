"""Sources: reads a file, the environment and flags into one table of given values."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from codeq_cluster.config.reference import FOREIGN
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import KEYS, SettingKey

_BY_NAME = {key.name: key for key in KEYS}
_SECRET_FILES = {f"{key.name}File": key for key in KEYS if key.secret}

# Variables of the reference that hold a whole section as JSON.
_SECTION_VARIABLES = {"PERSISTENCE_CONFIG": "persistenceConfig"}
_FOREIGN_VARIABLES = {each.env: each.name for each in FOREIGN.values() if each.env}

# A secret is a line or a small JSON document, never more.
_SECRET_BYTES_MAX = 64 * 1024
_FILE_BYTES_MAX = 2**20
_SHOWN_MAX = 80
_PASSWORD = re.compile(r"(?<=//)[^/\s]*@")  # In a URL, with its user.
_QUOTED = re.compile(r"'[^' ]{4,}'")  # A word of a file; shorter ones are its punctuation.


@dataclass(frozen=True, slots=True)
class Given:
    """A given value, not checked yet.

    Attributes:
        source: For an error's text: `file codeq.yaml`, `environment PORT`, `flag`.
    """

    raw: object = field(repr=False)
    source: str


def refuse(name: str, given: Given, allowed: str, *, secret: bool = False) -> ConfigInvalid:
    """Return the one-line error that names key, value and allowed values."""
    return ConfigInvalid(f"{name}={_shown(given.raw, secret)} ({given.source}): must be {allowed}")


def _shown(raw: object, secret: bool) -> str:
    if secret:
        return "********"
    text = _PASSWORD.sub("********@", str(raw).replace("\n", " "))
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"


def from_file(path: Path) -> dict[str, Given]:
    """Return a YAML or TOML file's values by key name, codeQ's keys included.

    Args:
        path: Its suffix decides the language.

    Raises:
        ConfigInvalid: It cannot be read or parsed, or has an unknown key.
    """
    given: dict[str, Given] = {}
    _flatten(_parse(path), "", f"file {path}", given)
    return given


def from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """Return the values of variables that name a key; an empty variable counts as not set.

    Raises:
        ConfigInvalid: A secret is given twice, its file cannot be read, or a section is wrong.
    """
    given: dict[str, Given] = {}
    for variable, section in _SECTION_VARIABLES.items():
        if environment.get(variable):
            document = {section: environment[variable]}
            _flatten(document, "", f"environment {variable}", given)
    for variable, name in _FOREIGN_VARIABLES.items():
        if environment.get(variable):
            given[name] = Given(environment[variable], f"environment {variable}")
    for key in KEYS:
        direct = environment.get(key.env, "")
        by_file = environment.get(f"{key.env}_FILE", "") if key.secret else ""
        if direct and by_file:
            raise ConfigInvalid(f"{key.env} and {key.env}_FILE are both set; set one of them")
        if direct:
            given[key.name] = Given(direct, f"environment {key.env}")
        elif by_file:
            given[key.name] = Given(
                read_secret(by_file, f"{key.env}_FILE"), f"environment {key.env}_FILE"
            )
    return given


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that configure a node."""
    ours = {"CODEQ_CONFIG_PATH", *_SECTION_VARIABLES, *_FOREIGN_VARIABLES}
    for key in KEYS:
        ours |= {key.env, f"{key.env}_FILE"}
    return {name: value for name, value in environment.items() if name not in ours}


def from_flags(flags: Mapping[str, str]) -> dict[str, Given]:
    """Return the values of `KEY=VALUE` flags by key name.

    Raises:
        ConfigInvalid: A key is unknown.
    """
    given: dict[str, Given] = {}
    for name, value in flags.items():
        if name in _SECRET_FILES:
            given[_SECRET_FILES[name].name] = Given(read_secret(value, name), f"flag {name}")
        elif name in _BY_NAME:
            given[name] = Given(value, "flag")
        else:
            raise _unknown(name, Given(value, "flag"))
    return given


def read_secret(path: object, name: str) -> str:
    """Return a secret's file without its last line break.

    Raises:
        ConfigInvalid: It cannot be read, is empty or too large to be a secret.
    """
    try:
        content = Path(str(path)).expanduser().read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # The home of nobody is a RuntimeError.
        reason = getattr(error, "strerror", None) or error
        raise ConfigInvalid(f"{name}={path}: {reason}; must be a readable file") from error
    if not content.strip() or len(content) > _SECRET_BYTES_MAX:
        raise ConfigInvalid(f"{name}={path}: must be a file of 1 to {_SECRET_BYTES_MAX} bytes")
    try:
        return content.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"{name}={path}: must be UTF-8 text") from error


class _StrictLoader(yaml.SafeLoader):
    """YAML that refuses a duplicate key, where the library would use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key} stands twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        mapping: dict[object, object] = super().construct_mapping(node, deep)
        return mapping


def _parse(path: Path) -> Mapping[str, object]:
    if path.suffix not in {".yaml", ".yml", ".toml", ".json"}:
        raise ConfigInvalid(f"config={path}: must be a file named .yaml, .yml, .json or .toml")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigInvalid(
            f"config={path}: {error.strerror or error}; must be a readable file"
        ) from error
    if len(content) > _FILE_BYTES_MAX:
        raise ConfigInvalid(f"config={path}: must be at most {_FILE_BYTES_MAX} bytes")
    try:
        if path.suffix == ".toml":
            document: object = tomllib.loads(content.decode())
        else:
            document = yaml.load(content, _StrictLoader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError, TypeError) as error:  # The 13th month is a ValueError.
        raise ConfigInvalid(
            f"config={path}: {_reason(error)}; must be valid YAML or TOML"
        ) from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigInvalid(f"config={path}: must be a mapping of keys to values")
    return document


def _reason(error: Exception) -> str:
    """Return what is wrong with a file and where, without its text: that may be a secret's."""
    text, place = str(error), ""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        text, place = str(error.problem), f" in line {mark.line + 1}, column {mark.column + 1}"
    return _QUOTED.sub("…", " ".join(text.split())) + place


def _flatten(node: Mapping[str, object], prefix: str, source: str, given: dict[str, Given]) -> None:
    for part, value in node.items():
        name = f"{prefix}{part}"
        if name in _BY_NAME or name in FOREIGN:
            # A template leaves an empty text where no value was filled in.
            if value is not None and value != "":
                _set(given, name, Given(value, source))
        elif name in _SECRET_FILES:
            _set(
                given,
                _SECRET_FILES[name].name,
                Given(read_secret(value, name), f"{source}, {name}"),
            )
        elif _is_section(name):
            _flatten(_section(name, value, source), f"{name}.", source, given)
        else:
            raise _unknown(name, Given(value, source))


def _set(given: dict[str, Given], name: str, value: Given) -> None:
    if name in given:
        raise ConfigInvalid(f"{name} is given twice ({value.source}); give it once")
    given[name] = value


def _is_section(name: str) -> bool:
    return any(known.startswith(f"{name}.") for known in (*_BY_NAME, *FOREIGN))


def _section(name: str, value: object, source: str) -> Mapping[str, object]:
    """Return a section given as a mapping or, as in the reference, as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
        if value is None:
            raise refuse(name, Given("text", source), "a mapping, or its JSON text")
    if value is None:
        return {}
    if not isinstance(value, dict):
        # A list may hold tokens.
        shown = Given("a list" if isinstance(value, list) else value, source)
        raise refuse(name, shown, "a mapping of keys to values")
    return value


def _unknown(name: str, given: Given) -> ConfigInvalid:
    near = difflib.get_close_matches(name, [*_BY_NAME, *_SECRET_FILES], n=1)
    hint = f"did you mean {near[0]}?" if near else "`codeq-cluster config --keys` lists them"
    # Do not print it: the value of an unknown key may be a misspelt secret.
    return ConfigInvalid(f"{name} ({given.source}): unknown key; {hint}")


def checked(key: SettingKey, given: Given) -> object:
    """Return the parsed value.

    Raises:
        ConfigInvalid: The key does not allow it.
    """
    try:
        return key.kind.parse(given.raw)
    except ValueError as error:
        raise refuse(key.name, given, key.kind.allowed, secret=key.secret) from error
