"""Block: reads one mapping of a list, such as a provider or a token, field by field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from codeq_cluster.config.sources import Given, read_secret, refuse
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings.kinds import ValueKind


@dataclass(frozen=True, slots=True)
class Block:
    """The fields of one item; each method raises ConfigInvalid for an invalid field.

    Attributes:
        name: Of the item, for an error's text: `auth.producer[0]`.
        source: Where it was given.
    """

    name: str
    fields: Mapping[str, object] = field(repr=False)
    source: str

    def refuse(self, part: str, allowed: str, *, secret: bool = False) -> ConfigInvalid:
        """Return the one-line error that names the field, its value and the allowed values."""
        given = Given(self.fields.get(part), self.source)
        return refuse(f"{self.name}.{part}", given, allowed, secret=secret)

    def only(self, known: Collection[str]) -> None:
        """Refuse an unknown field."""
        unknown = sorted(str(part) for part in self.fields if part not in known)
        if unknown:
            raise ConfigInvalid(
                f"{self.name}.{unknown[0]} ({self.source}): unknown key; "
                f"known are {', '.join(sorted(known))}"
            )

    def text(self, part: str, *, must: bool = False) -> str:
        """Return a text; empty for an optional one that is missing."""
        value = self.fields.get(part)
        if value is None and not must:
            return ""
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(part, "a text that is not empty")
        return value.strip()

    def texts(self, part: str) -> tuple[str, ...]:
        """Return a list of texts; empty if it is missing."""
        value = self.fields.get(part)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise self.refuse(part, "a list of texts")
        return tuple(value)

    def number(self, part: str, kind: ValueKind) -> int | None:
        """Return a whole number, or None if it is missing."""
        value = self.fields.get(part)
        if value is None:
            return None
        try:
            found = kind.parse(value)
        except ValueError as error:
            raise self.refuse(part, kind.allowed) from error
        assert isinstance(found, int)
        return found

    def secret(self, part: str) -> str:
        """Return a secret from the field, or from the file that its `File` field names."""
        direct, by_file = self.fields.get(part), self.fields.get(f"{part}File")
        if (direct is None) == (by_file is None):
            raise ConfigInvalid(
                f"{self.name}.{part} ({self.source}): give exactly one of {part} and {part}File"
            )
        if by_file is not None:
            return read_secret(by_file, f"{self.name}.{part}File")
        if not isinstance(direct, str) or not direct.strip():
            raise self.refuse(part, "a text that is not empty", secret=True)
        return direct
