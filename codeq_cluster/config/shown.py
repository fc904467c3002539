"""Shown: a configuration for a reader: each key's value, source and default."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from codeq_cluster.config.keys import SettingKey
from codeq_cluster.config.values import Values
from codeq_cluster.settings import NodeSettings


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
    match key.name:
        case "raft.bindAddr":
            value: object = f"{settings.link_host}:{settings.link_port}"
        case "raft.peers":
            value = ",".join(f"{peer.id}={peer.link}" for peer in settings.peers)
        case "raft.peerHTTPAddrs":
            value = ",".join(f"{peer.id}={peer.http}" for peer in settings.peers)
        case _:
            value = attrgetter(key.path)(settings) if key.path else values.get(key.name)
    return Shown(key.name, _text(value), source)


def default_of(key: SettingKey) -> str:
    """Return a key's default value, or empty if it has none."""
    return "" if key.secret else _text(key.default)


def _text(value: object) -> str:
    match value:
        case None | ():
            return ""
        case (str(), *_):
            return ",".join(map(str, value))
        case _:
            return str(value)
