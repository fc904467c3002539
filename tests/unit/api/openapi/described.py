"""Described: a test's view of the document, for the form of bodies and answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

JSON = "application/json"


class Described:
    """One OpenAPI document.

    Schemas are closed: a field that is not in the document is a fault.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self._components = copy.deepcopy(document["components"])
        for schema in self._components["schemas"].values():
            schema["additionalProperties"] = False

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield path, method in capitals and operation of every route."""
        for path, methods in self.document["paths"].items():
            for method, operation in methods.items():
                yield path, method.upper(), operation

    def answer(self, method: str, path: str, status: int) -> dict[str, Any]:
        """Return the description of an answer.

        Raises:
            KeyError: Nothing is.
        """
        found: dict[str, Any] = self.document["paths"][path][method.lower()]["responses"][
            str(status)
        ]
        return found

    def faults(self, schema: Mapping[str, Any], value: object) -> list[str]:
        """Return the differences of a value from a schema of the document."""
        validator = Draft202012Validator({**schema, "components": self._components})
        return [error.message for error in validator.iter_errors(value)]
