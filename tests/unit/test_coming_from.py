"""The page for those who come from another system: what it calls ours is there."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from codeq_cluster import client
from codeq_cluster.cli.main import _parser
from docs.tools.http import document

from .named_tests import ROOT

_TEXT = (ROOT / "docs" / "coming-from.md").read_text()
_ROWS = re.findall(r"^\| (?!---)(?:.*?) \| (.+?) \| .*\|$", _TEXT, re.MULTILINE)
_OURS = sorted({code for cell in _ROWS for code in re.findall(r"`([^`]+)`", cell)} - {"here"})
# A header's value, a queue's name, the page, and a status.
_ELSEWHERE = {"Authorization: Bearer", "q", "/ui", "FAILED"}

_DOCUMENT = document()


def _commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    """Yield every command, and every group of commands."""
    yield name
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, deeper in action.choices.items():
                yield from _commands(deeper, f"{name} {word}".strip())


def _fields(part: object) -> Iterator[str]:
    """Yield the names of all fields and parameters that the API's document has."""
    if isinstance(part, dict):
        yield from part.get("properties", {})
        if "in" in part and "name" in part:
            yield part["name"]
        for each in part.values():
            yield from _fields(each)
    elif isinstance(part, list):
        for each in part:
            yield from _fields(each)


_COMMANDS = set(_commands(_parser([])))
_FIELDS = set(_fields(_DOCUMENT))
_PYTHON = {
    *client.__all__,
    *dir(client.Client),
    *dir(client.Task),
    *client.NewTask.__dataclass_fields__,
    *client.Worker.task.__annotations__,
    *client.Worker.__init__.__annotations__,
    *client.Retry.__init__.__annotations__,
    *client.Done.__annotations__,
    *client.Fail.__init__.__annotations__,
    *client.Client.group.__annotations__,
}


def _is_route(code: str) -> bool:
    method, _, path = code.partition(" ")
    paths = {re.sub(r"{\w+}", "{}", each): verbs for each, verbs in _DOCUMENT["paths"].items()}
    return method.lower() in paths.get(re.sub(r"{\w+}", "{}", path), {})


def _is_field(code: str) -> bool:
    """Return whether it is a field, or one within others."""
    return set(code.split(".")) <= _FIELDS


def _is_python(code: str) -> bool:
    """Return whether every name of a call is one of ours, whatever it is called with."""
    said = re.sub(r'"[^"]*"|\b(payload|value|note)\b', "", code)
    names = set(re.findall(r"[A-Za-z_]{2,}", said)) - {"raise", "client", "worker", "id"}
    return bool(names) and names <= _PYTHON | {"task"}


def test_the_page_names_much_of_ours() -> None:
    """The patterns of this file find its tables."""
    assert len(_OURS) > 60


@pytest.mark.parametrize("code", [each for each in _OURS if each not in _ELSEWHERE])
def test_what_is_named_is_there(code: str) -> None:
    """A command, a route, a field of the API, or names of the Python client."""
    assert code in _COMMANDS or _is_field(code) or _is_route(code) or _is_python(code)
