"""Written pages: they equal the output of `make pages`, and are complete."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from codeq_cluster.api.app import ROUTES
from codeq_cluster.api.routes.task_views import _STATUS
from codeq_cluster.core.task import State
from docs.tools.lifecycle import _PLACES, _WAYS, _arrows, drawing
from docs.tools.transitions import ARROWS
from docs.tools.written import ROOT, pages

_WRITTEN = pages()
_REFERENCE = _WRITTEN["docs/http.md"]


def test_every_written_page_is_the_one_of_its_source() -> None:
    """`make pages` has been run since the last change of its sources."""
    for name, text in _WRITTEN.items():
        assert text == (ROOT / name).read_text(), f"{name}: run `make pages`"


def test_the_reference_has_every_route_once() -> None:
    """Each route's text is that of the route table."""
    headed = re.findall(r"^### ([A-Z]+ /\S+)$", _REFERENCE, re.MULTILINE)

    assert sorted(headed) == sorted(f"{route.method} {route.path}" for route in ROUTES)


def test_every_link_within_the_reference_leads_somewhere() -> None:
    """A link leads to an object with a heading, and headings are unique."""
    objects = re.findall(r"^### (\w+)$", _REFERENCE, re.MULTILINE)
    linked = set(re.findall(r"\]\(#(\w+)\)", _REFERENCE))

    assert linked == {name.lower() for name in objects}
    assert len(linked) == len(objects)


def test_the_diagram_has_every_arrow_of_the_table_and_no_other() -> None:
    """Each cause is on the diagram, and each laid-out path is used."""
    words = [element.text for element in ET.fromstring(drawing()).iter() if element.text]

    assert {arrow.cause for arrow in ARROWS} <= set(words)
    assert _arrows().keys() == _WAYS.keys()
    assert sum(map(len, _arrows().values())) < len(ARROWS)


def test_the_diagram_names_the_states_as_the_api_does() -> None:
    """The names are the API's values of `status`."""
    assert _STATUS == {state: place.status for state, place in _PLACES.items()}
    assert set(State) == _PLACES.keys()
