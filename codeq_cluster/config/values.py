"""Values: all given values, checked key by key."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.config.keys import KEYS
from codeq_cluster.config.sources import Given, checked, refuse
from codeq_cluster.errors import ConfigInvalid


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
