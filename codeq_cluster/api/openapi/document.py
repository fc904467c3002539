"""Document: the route table and the bodies' types combined as OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codeq_cluster import __version__
from codeq_cluster.api.declared.bodies import REF
from codeq_cluster.api.declared.operations import JSON, Operation
from codeq_cluster.api.openapi import operation
from codeq_cluster.api.openapi.operation import Json
from codeq_cluster.api.routes.webhooks import SENT, SIGNED
from codeq_cluster.settings import NodeSettings, WebhookSettings
from codeq_cluster.webhooks.http_client import DELIVERY

_ABOUT = """A task broker for several machines, wire-compatible with codeQ.

Every route works on every node. Field names in bodies match in any case, unknown fields are \
ignored, and null is the same as absent; a body has at most 1,000 fields of its own. Every error \
is an `Error`, whose `code` is stable; `outcome-unknown` says that a write may or may not have \
taken effect, never that it failed. \
Every answer has `X-Request-Id`: the one that was sent, or a generated one.

Before any route is reached: 400 `bad-request` for what is no HTTP, or has a path or query in \
another encoding than UTF-8, 404 `no-such-route`, \
405 `method-not-allowed`, 417 `expectation-failed`, and 503 `overloaded` for a connection too many.
"""


def encoded(operations: Sequence[Operation], settings: NodeSettings) -> bytes:
    """Return the document that describes the routes as a node with these settings serves them."""
    schema_of, schemas = operation.answers(operations)
    schemas |= operation.requests(operations, settings)
    paths: dict[str, Json] = {}
    for each in operations:
        made = operation.described(each, settings, schema_of)
        paths.setdefault(each.path, {})[each.method.lower()] = made
    tags = dict(operation.tag(each) for each in operations)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "codeq-cluster", "version": __version__, "description": _ABOUT},
        # Differs between nodes with different settings; `doctor` reads it.
        "x-node": {
            "artifacts": settings.artifacts.provider.value,
            "webhooks": settings.webhooks.signing.value,
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in tags.items()],
        "paths": paths,
        "webhooks": _sent(settings.webhooks),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


def _sent(settings: WebhookSettings) -> dict[str, Json]:
    """Return the requests that a node with these settings makes.

    Their schemas are no components: a generator for Go drops those that no route refers to.
    """
    signed = bool(settings.hmac_secret)
    _, components = msgspec.json.schema_components(
        [type(each.example) for each in SENT.values()], ref_template=REF
    )
    found: dict[str, Json] = {}
    for name, each in SENT.items():
        body = type(each.example).__name__
        for field, about in each.fields.items():
            components[body]["properties"][field]["description"] = about
        content = {"schema": components[body], "example": each.example}
        parameters = [
            {
                "name": header,
                "in": "header",
                "required": header == DELIVERY or (signed and header in SIGNED),
                "description": about,
                "schema": {"type": "string"},
            }
            for header, about in each.headers.items()
        ]
        answers = {
            "2XX": {"description": "Accepted; the body is not read."},
            "default": {"description": "Not accepted."},
        }
        found[name] = {
            "post": {
                "summary": each.summary,
                "description": each.text,
                "operationId": name,
                "parameters": parameters,
                "requestBody": {"required": True, "content": {JSON: content}},
                "responses": answers,
            }
        }
    return found
