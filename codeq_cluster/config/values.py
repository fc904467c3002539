"""Values: all given values, checked key by key, and each as a reader is shown it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from codeq_cluster.config.sources import Given, checked, refuse
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import KEYS, NodeSettings, SettingKey


class Values:
    """The given values, checked, by key name.

    Args:
        given: The values of the sources, by key name.

    Raises:
        ConfigInvalid: A key does not allow its value.
    """

    def __init__(self, given: Mapping[str, Given]) -> None:
        self.given = given
        self._values = {
            key.name: checked(key, given[key.name]) for key in KEYS if key.name in given
        }
        self._defaults = {key.name: key.default for key in KEYS}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> object:
        """Return the value, or None if none was given."""
        return self._values.get(name)

    def in_effect(self, name: str) -> object:
        """Return the value, or the default of the key's field if none was given."""
        return self._values.get(name, self._defaults[name])

    def text(self, name: str, default: str = "") -> str:
        """Return the value as a text."""
        return str(self._values.get(name, default))

    def table(self, name: str) -> dict[str, str]:
        """Return the value of a key whose kind is a table; empty if none was given."""
        table = self._values.get(name, {})
        assert isinstance(table, dict)
        return table

    def source(self, name: str) -> str:
        """Return where the value comes from, `default` if none was given."""
        return self.given[name].source if name in self.given else "default"

    def refuse(self, name: str, allowed: str) -> ConfigInvalid:
        """Return the one-line error that names the key, its value and the allowed values."""
        return refuse(name, self.given.get(name, Given("not set", "default")), allowed)


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of the effective configuration; a secret's value is hidden."""

    name: str
    value: str
    source: str


def shown(key: SettingKey, settings: NodeSettings, values: Values) -> Shown:
    """Return a key's value in effect."""
    source = values.source(key.name)
    if key.secret:
        return Shown(key.name, "********" if key.name in values else "", source)
    match key.name:
        case "raft.bindAddr":
            value: object = f"{settings.link_host}:{settings.link_port}"
        case "raft.peers":
            value = ",".join(f"{peer.id}={peer.link}" for peer in settings.peers)
        case "raft.peerHTTPAddrs":
            value = ",".join(f"{peer.id}={peer.http}" for peer in settings.peers)
        case _:
            value = attrgetter(key.path)(settings) if key.path else values.get(key.name)
    return Shown(key.name, _text(value), source)


def default_of(key: SettingKey) -> str:
    """Return a key's default value, or empty if it has none."""
    return "" if key.secret else _text(key.default)


def _text(value: object) -> str:
    match value:
        case None | ():
            return ""
        case (str(), *_):
            return ",".join(map(str, value))
        case _:
            return str(value)
