"""Document: the route table and the bodies' types combined as OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codeq_cluster import __version__
from codeq_cluster.api.http.middleware import Route
from codeq_cluster.api.openapi import (
    artifacts,
    audit,
    backups,
    cluster,
    components,
    dead_letters,
    deliveries,
    operation,
    ops,
    queues,
    subscriptions,
    task_lists,
    tasks,
    workers,
)
from codeq_cluster.api.openapi.types import BodyFields, Json, Operations
from codeq_cluster.settings import NodeSettings

_ABOUT = """A task broker for several machines, wire-compatible with codeQ.

Every route works on every node. Field names in bodies match in any case, unknown fields are \
ignored, and null is the same as absent. Every error is an `Error`, whose `code` is stable; \
`outcome-unknown` says that a write may or may not have taken effect, never that it failed.

Before any route is reached: 400 `bad-request` for what is no HTTP, 404 `no-such-route`, \
405 `method-not-allowed`, 417 `expectation-failed`, and 503 `overloaded` for a connection too many.
"""


def operations(settings: NodeSettings) -> Operations:
    """Return the description of each handler on a node with these settings."""
    limits = settings.limits
    return {
        **tasks.operations(limits),
        **workers.operations(limits),
        **artifacts.operations(limits),
        **dead_letters.OPERATIONS,
        **task_lists.OPERATIONS,
        **queues.OPERATIONS,
        **deliveries.OPERATIONS,
        **audit.OPERATIONS,
        **cluster.operations(settings.shards),
        **backups.operations(settings.raft.entry_bytes_max),
        **subscriptions.OPERATIONS,
        **ops.OPERATIONS,
    }


def fields(settings: NodeSettings) -> BodyFields:
    """Return the description of bodies' fields beyond their types, with these settings."""
    return {
        **tasks.fields(settings),
        **workers.fields(settings),
        **artifacts.fields(settings.limits),
        **dead_letters.FIELDS,
        **task_lists.FIELDS,
        **queues.FIELDS,
        **deliveries.FIELDS,
        **cluster.fields(settings.shards),
        **subscriptions.fields(settings.webhooks.subscription_min_interval_seconds),
    }


def encoded(table: Sequence[Route], settings: NodeSettings) -> bytes:
    """Return the document that describes the routes as a node with these settings serves them."""
    known = operations(settings)
    schema_of, schemas = components.answers(known)
    schemas |= components.requests(fields(settings))
    paths: dict[str, Json] = {}
    for route in table:
        made = operation.operation(route, known[route.handler], settings, schema_of)
        paths.setdefault(route.path, {})[route.method.lower()] = made
    tags = dict(operation.tag(route.handler) for route in table)
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
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)
