"""Profiles: clusters and tokens by name, in a file of the user's.

The file has the form and the path of codeQ's own, so profiles made there are found. Unknown keys in
it are kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import environment

DEFAULT = "default"

_DIRECTORY = "CODEQ_CONFIG_DIR"
_HOME = "~/.codeq"
_CURRENT, _PROFILES = "currentProfile", "profiles"
_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The address and tokens of one cluster; an empty value is unset.

    Attributes:
        base_url: The URL of a node, or of several, separated by commas.
        token: For every command whose own token below is empty.
        ca_file: PEM file of the authorities trusted for https.
    """

    base_url: str = ""
    token: str = ""
    producer_token: str = ""
    worker_token: str = ""
    operator_token: str = ""
    ca_file: str = ""


# The operator's token and the authorities are ours, the other names codeQ's own.
_KEYS = {
    "base_url": "baseUrl",
    "token": "token",
    "producer_token": "producerToken",
    "worker_token": "workerToken",
    "operator_token": "operatorToken",
    "ca_file": "caFile",
}


@dataclass(slots=True, kw_only=True)
class Profiles:
    """The contents of the file.

    Attributes:
        current: The profile used when none is named; empty for none.
    """

    file: Path
    current: str = ""
    _rows: dict[str, dict[str, object]] = field(default_factory=dict)
    _rest: dict[str, object] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Return the profiles' names, in order."""
        return sorted(self._rows)

    def get(self, name: str) -> Profile:
        """Return a profile.

        Raises:
            ConfigInvalid: No profile has that name, or one of its keys holds no text.
        """
        row = self._rows.get(name)
        if row is None:
            there = f"it has {', '.join(self.names)}" if self._rows else "there is none yet"
            raise ConfigInvalid(
                f"no profile {name} in {self.file}: {there}; "
                f"make it with: codeq-cluster init --profile {name}"
            )
        values = {each: row.get(key) or "" for each, key in _KEYS.items()}
        for each, value in values.items():
            if not isinstance(value, str):
                raise ConfigInvalid(f"{self.file}: {name}.{_KEYS[each]}: must be text")
        return Profile(**{each: str(value).strip() for each, value in values.items()})

    def put(self, name: str, profile: Profile) -> None:
        """Store a profile; unknown keys of the same profile are kept."""
        row = self._rows.setdefault(name, {})
        for each, key in _KEYS.items():
            value = getattr(profile, each)
            if value:
                row[key] = value
            else:
                row.pop(key, None)

    def delete(self, name: str) -> None:
        """Delete a profile; after deleting the current one, none is current."""
        self.get(name)
        del self._rows[name]
        if self.current == name:
            self.current = ""

    def write(self) -> None:
        """Replace the file, readable only by its user.

        Raises:
            ConfigInvalid: It cannot be written; or the user has no home and no directory is set.
        """
        if self.file.parts[0] == "~":
            raise ConfigInvalid(
                f"{self.file}: you have no home; name a directory with {_DIRECTORY}"
            )
        content = {**self._rest, _CURRENT: self.current, _PROFILES: self._rows}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        fresh = self.file.with_name(f".{self.file.name}.new")
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w") as stream:
                stream.write(text)
            fresh.replace(self.file)
        except OSError as error:
            raise ConfigInvalid(
                f"{self.file}: {error.strerror or error}; name another directory with {_DIRECTORY}"
            ) from error


def read() -> Profiles:
    """Return the user's profiles, none if there is no file.

    Raises:
        ConfigInvalid: The file cannot be read, or has another form.
    """
    file = Path(environment().get(_DIRECTORY) or _HOME, "config.yaml")
    try:
        file = file.expanduser()
    except RuntimeError:
        # A user without a home, as in a container, has no profiles and needs none.
        return Profiles(file=file)
    try:
        with file.open("rb") as stream:
            content = yaml.safe_load(stream.read(_BYTES_MAX)) or {}
    except FileNotFoundError:
        return Profiles(file=file)
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigInvalid(f"{file}: {reason}; correct it, or remove it and run init") from error
    rows = content.get(_PROFILES) or {} if isinstance(content, dict) else None
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise ConfigInvalid(f"{file}: must be {_CURRENT}, and {_PROFILES} by name")
    rest = {name: value for name, value in content.items() if name not in (_CURRENT, _PROFILES)}
    return Profiles(
        file=file,
        current=str(content.get(_CURRENT) or ""),
        _rows={str(name): dict(row) for name, row in rows.items()},
        _rest=rest,
    )


def chosen(name: str | None, variables: Mapping[str, str]) -> Profile:
    """Return the selected profile: the one named, or CODEQ_PROFILE's, or the current one.

    Raises:
        ConfigInvalid: The named profile does not exist, or the file cannot be read.
    """
    profiles = read()
    meant = name or variables.get("CODEQ_PROFILE") or profiles.current
    return profiles.get(meant) if meant else Profile()
