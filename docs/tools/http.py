"""HTTP: the reference of docs/http.md, generated from the document at /openapi.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from codeq_cluster.api.app import ROUTES
from codeq_cluster.api.openapi.document import encoded
from codeq_cluster.settings import NodeSettings, PeerAddress
from docs.tools.examples import EXAMPLES, PATH, Example

_Json = Mapping[str, Any]

_LINK = re.compile(r"\]\(#(\w+)\)")

# The reference states the defaults and bounds of an unconfigured node.
_SETTINGS = NodeSettings(
    node_id="n1",
    cluster_id="c",
    cluster_secret="of a node that is never started",
    peers=(PeerAddress(id="n1", link="127.0.0.1:7000", http="http://127.0.0.1"),),
    data_dir=Path("data"),
)
# Any route can answer with these, so the page lists them once at the top.
_USUAL: Mapping[str, str] = {
    "unauthorized": "401: the token is missing, malformed or not accepted here.",
    "forbidden": "403: the token is valid but does not allow this.",
    "invalid-consistency": "400: `?consistency=` on a route without stale reads, "
    "or with a value other than `linearizable` and `stale`.",
    "unknown-name": "400: the query, or a body that selects, has a name that the route does not "
    "know, such as a misspelt `dryRun`. Nothing was done.",
    "invalid-body": "400: the body is not JSON, or a field has the wrong type.",
    "body-too-large": "413: the body is too large; the message names the limit.",
    "request-timeout": "408: the body did not arrive in time.",
    "no-leader": (
        "503: the shard had no leader within the request's time, or a read got no answer from it; "
        "`detail` says which. Nothing was done."
    ),
    "overloaded": "503: a queue inside the node is full. Nothing was done.",
    "outcome-unknown": "503: the write may or may not have happened; follow "
    "[guarantees](guarantees.md#unknown-is-said).",
    "upgrade-under-way": "503: the shard's leader runs an earlier release. Nothing was done.",
    "auth-unavailable": "503: the keys that verify tokens cannot be fetched.",
    "internal": "500: a fault of the broker; its log has the request id.",
}

# The beginning of the page; the codes of `_USUAL` follow it.
_HEAD = (Path(__file__).parent / "http-head.md").read_text()


def document() -> _Json:
    """Return the document that an unconfigured node serves as /openapi.json."""
    described: _Json = json.loads(encoded(ROUTES, _SETTINGS))
    return described


def reference(described: _Json) -> str:
    """Return the page of an OpenAPI document of this API."""
    lines = [_HEAD + "\n".join(f"- `{code}`, {text}" for code, text in _USUAL.items()), ""]
    of_tags: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            of_tag = of_tags.setdefault(operation["tags"][0], [])
            of_tag += _operation(described, method.upper(), path, operation)
    for tag in described["tags"]:
        text = _one_line(tag["description"])
        lines += [f"## {tag['name']}", text, "", *of_tags[tag["name"]]]
    lines += ["## Requests to receivers", "Nodes make these requests, to URLs that tasks and "]
    lines[-1] += "subscriptions name. [Recipes](recipes.md) verify their signatures."
    for name, methods in described["webhooks"].items():
        lines += ["", f"### The request {name}", *_sent(described, methods["post"])]
    lines += ["## Objects", "A field marked * is always present.", ""]
    for name, text in _objects(described, "\n".join(lines)).items():
        lines += [f"### {name}", text, ""]
    return "\n".join(lines).rstrip() + "\n"


def curl(method: str, path: str, operation: _Json) -> str:
    """Return the request of an operation as lines of a shell command."""
    example = EXAMPLES.get(operation["operationId"], Example())
    filled = re.sub(r"{(\w+)}", lambda part: PATH.get(part[1], example.id), path)
    url = f'"$CODEQ{filled}' + (f"?{example.query}" if example.query else "") + '"'
    words = ["curl", "-sS"]
    if method == "HEAD":
        words.append("-I")
    elif method != ("POST" if example.body else "GET"):
        words += ["-X", method]
    words.append(url)
    if operation["security"]:
        words += ["-H", '"$AUTH"']
    command = " ".join(words)
    if example.body.startswith("@"):
        return f"{command} \\\n  --data-binary {example.body}"
    return f"{command} \\\n  -d '{example.body}'" if example.body else command


def _operation(described: _Json, method: str, path: str, operation: _Json) -> Iterator[str]:
    yield f"### {method} {path}"
    yield _one_line(operation["description"])
    yield ""
    yield from ("```sh run", curl(method, path, operation), "```", "")
    asked = [each for each in operation["parameters"] if each["in"] != "path"]
    for each in asked:
        kind = "header" if each["in"] == "header" else "query"
        bounds = _bounds(each["schema"])
        yield f"- {kind} `{each['name']}`{bounds}: {_one_line(each['description'])}"
    if asked:
        yield ""
    yield from _body(described, operation)
    for status, answer in operation["responses"].items():
        if int(status) < 400 or not _coded(answer):
            yield f"- **{status}**{_answered_with(answer)}: {_one_line(answer['description'])}"
    own = _own_errors(operation)
    if own:
        yield f"- errors: {own}"
    yield ""


def _sent(described: _Json, operation: _Json) -> Iterator[str]:
    yield f"{operation['summary']} {operation['description']}"
    yield ""
    for each in operation["parameters"]:
        yield f"- header `{each['name']}`: {each['description']}"
    yield ""
    yield from _body(described, operation)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _coded(answer: _Json) -> bool:
    return str(answer["description"]).startswith("`")


def _own_errors(operation: _Json) -> str:
    told = []
    for status, answer in operation["responses"].items():
        if int(status) < 400 or not _coded(answer):
            continue
        codes = re.findall(r"`([\w-]+)`", answer["description"])
        own = [f"`{code}`" for code in codes if code not in _USUAL]
        if own:
            told.append(f"{status} {', '.join(own)}")
    return "; ".join(told)


def _answered_with(answer: _Json) -> str:
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    kind = _kind(schema) if schema else ""
    return f" {kind}" if kind else ""


def _body(described: _Json, operation: _Json) -> Iterator[str]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema")
    if schema is None:
        return
    name = _name(schema.get("$ref", ""))
    body = described["components"]["schemas"][name] if name else schema
    required = {*schema.get("required", ()), *body.get("required", ())}
    rows = [
        f"| `{name}`{' *' if name in required else ''} | {_kind(field)}{_bounds(field)} "
        f"| {_cell(field.get('description', ''))} |"
        for name, field in body["properties"].items()
    ]
    yield from ("| field (* required) | type | |", "|---|---|---|", *rows, "")


def _objects(described: _Json, text: str) -> Mapping[str, str]:
    """Return each object that a text links to, directly or through another, in words."""
    schemas = {name.lower(): name for name in described["components"]["schemas"]}
    told: dict[str, str] = {}
    left = _LINK.findall(text)
    while left:
        name = schemas[left.pop()]
        if name not in told:
            told[name] = _object(described["components"]["schemas"][name])
            left += _LINK.findall(told[name])
    return dict(sorted(told.items()))


def _object(schema: _Json) -> str:
    about = _one_line(schema.get("description", ""))
    required = set(schema.get("required", ()))
    fields = (
        f"`{name}`{'*' if name in required else ''} {_kind(field)}"
        for name, field in schema.get("properties", {}).items()
    )
    words = (f"`{word}`" for word in schema.get("enum", ()))
    return f"{about}\n\n{', '.join(words) or '; '.join(fields)}"


def _kind(schema: _Json) -> str:
    if "$ref" in schema:
        name = _name(schema["$ref"])
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    kind = schema.get("type", "any JSON")
    if isinstance(kind, list):
        kind = " or ".join(each for each in kind if each != "null")
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    if kind == "object" and "additionalProperties" in schema:
        return f"object of {_kind(schema['additionalProperties'])}"
    return str(kind)


def _bounds(schema: _Json) -> str:
    words = [json.dumps(word) for word in schema.get("enum", ()) if word]
    if words:
        return ", " + " or ".join(words)
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is None and most is None:
        return ""
    if most is None:
        return f", {least} or more"
    return f", at most {most}" if least is None else f", {least} to {most}"


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
