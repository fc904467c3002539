"""Shown: a configuration for a reader: each key's value, source and default."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codeq_cluster.config.key import SettingKey
from codeq_cluster.config.values import Values
from codeq_cluster.settings import NodeSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# A node needs values for them, but its configuration need not name them.
NAMED_DEFAULTS = {"cluster_id": "codeq", "node_id": "n1"}


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
    value = _field(settings, key.path) if key.path else values.get(key.name)
    match key.name:
        case "raft.bindAddr":
            value = f"{settings.link_host}:{settings.link_port}"
        case "raft.peers":
            value = ",".join(f"{peer.id}={peer.link}" for peer in settings.peers)
        case "raft.peerHTTPAddrs":
            value = ",".join(f"{peer.id}={peer.http}" for peer in settings.peers)
    return Shown(key.name, "" if value is None else str(value), source)


def default_of(key: SettingKey) -> str:
    """Return a key's default value, or empty if it has none."""
    if not key.path or key.secret:
        return ""
    section, _, name = key.path.rpartition(".")
    described = _default(NodeSettings, section) if section else NodeSettings
    assert dataclasses.is_dataclass(described)
    default = _default(described, name)
    if default is dataclasses.MISSING:
        return NAMED_DEFAULTS.get(name, "")
    return "" if default is None else str(default)


def _default(described: type[DataclassInstance] | DataclassInstance, name: str) -> object:
    return next(field.default for field in dataclasses.fields(described) if field.name == name)


def _field(settings: NodeSettings, path: str) -> object:
    value: object = settings
    for part in path.split("."):
        value = getattr(value, part)
    return value
