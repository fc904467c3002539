"""The page of the document, drawn by a real JavaScript engine onto a minimal browser page."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from py_mini_racer import MiniRacer

from codeq_cluster.api.app import ROUTES
from codeq_cluster.api.openapi.document import encoded
from codeq_cluster.api.routes import ops
from codeq_cluster.settings import NodeSettings, PeerAddress

# The part of a browser's interface that the page uses. It keeps texts and attributes, and lays
# nothing out.
_BROWSER = """
class Node {
  constructor(tag) { this.tag = tag; this.children = []; this.attributes = {}; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...children) {
    for (const child of children) if (child === undefined) throw new Error("undefined is drawn");
    this.children.push(...children);
  }
  replaceChildren(...children) { this.children = []; this.append(...children); }
  addEventListener() {}
  scrollIntoView() {}
  get text() {
    return this.children.map((each) => (each instanceof Node ? each.text : String(each))).join("");
  }
  all(tag) {
    const below = this.children.filter((each) => each instanceof Node);
    return below.filter((each) => each.tag === tag).concat(...below.map((each) => each.all(tag)));
  }
}
const parts = { nav: new Node("nav"), main: new Node("main") };
const document = {
  createElement: (tag) => new Node(tag),
  querySelector: (name) => parts[name],
  getElementById: () => null,
};
const location = { origin: "https://node", hash: "" };
const fetch = async () => ({ ok: true, json: async () => SPEC });
"""
_DRAWN = """
JSON.stringify({
  text: parts.main.text,
  links: parts.nav.all("a").map((each) => each.attributes.href.slice(1)),
  routes: Object.fromEntries(parts.main.all("details")
    .filter((each) => each.attributes.id)
    .map((each) => [each.attributes.id, { text: each.text, curl: each.all("pre")[0].text }])),
})
"""
_OPERATIONS = [
    pytest.param(path, method, id=f"{method} {path}")
    for path, method in sorted((route.path, route.method.lower()) for route in ROUTES)
]


@cache
def spec() -> dict[str, Any]:
    """Return the document of a node."""
    settings = NodeSettings(
        node_id="n1",
        cluster_id="c",
        cluster_secret="s",
        peers=(PeerAddress(id="n1", link="127.0.0.1:1", http="http://127.0.0.1:2"),),
        data_dir=Path("unused"),
    )
    described: dict[str, Any] = json.loads(encoded(ROUTES, settings))
    return described


@cache
def drawn() -> dict[str, Any]:
    """Run the page's script and return its drawing."""
    page = Path(str(ops.__file__)).parents[1] / "web" / "docs.html"
    [script] = re.findall("<script>(.*?)</script>", page.read_text(), re.DOTALL)
    engine = MiniRacer()
    engine.eval(f"const SPEC = {json.dumps(spec())};{_BROWSER}{script}")
    shown: dict[str, Any] = json.loads(str(engine.eval(_DRAWN)))
    return shown


def operation(path: str, method: str) -> dict[str, Any]:
    """Return the document's description of a route."""
    found: dict[str, Any] = spec()["paths"][path][method]
    return found


def test_the_whole_document_is_drawn() -> None:
    """Each route appears once beside the page and once on it, and no text is `undefined`."""
    ids = {
        operation["operationId"]
        for methods in (*spec()["paths"].values(), *spec()["webhooks"].values())
        for operation in methods.values()
    }

    assert "could not be shown" not in drawn()["text"]
    assert sorted(drawn()["links"]) == sorted(drawn()["routes"]) == sorted(ids)
    assert "undefined" not in drawn()["text"]
    assert "[object" not in drawn()["text"]
    assert "`" not in drawn()["text"]  # The marked text is shown as code.


@pytest.mark.parametrize(("path", "method"), _OPERATIONS)
def test_a_route_is_shown_with_a_command_that_asks_it(path: str, method: str) -> None:
    """The command has method and path, and a token and a body where the route takes them."""
    described = operation(path, method)
    shown = drawn()["routes"][described["operationId"]]
    command = shown["curl"]

    assert path in shown["text"]
    assert f"'https://node{path}'" in command
    assert ("$TOKEN" in command) == bool(described["security"])
    if method == "head":
        assert "curl -sS -I" in command  # Told to send HEAD, curl would wait for a body.
    elif method != "get":
        assert f"-X {method.upper()}" in command
    media = set(described.get("requestBody", {}).get("content", {}))
    assert ("-d '" in command) == ("application/json" in media)
    assert ("--data-binary @" in command) == bool(media - {"application/json"})
