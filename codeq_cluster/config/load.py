"""Load: flag over environment over file over default, checked together, into one `NodeSettings`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from codeq_cluster.config.access import producer_providers, worker_providers
from codeq_cluster.config.rules import rules
from codeq_cluster.config.sources import from_environment, from_file, from_flags
from codeq_cluster.config.translation import Remark, translated
from codeq_cluster.config.values import Shown, Values, shown
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import KEYS, NodeSettings, PeerAddress
from codeq_cluster.settings.key import section_of
from codeq_cluster.wire.addresses import Address

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Section = TypeVar("Section", bound="DataclassInstance")

_DEFAULT_LINK = "127.0.0.1:18080"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked configuration.

    Attributes:
        remarks: On values of codeQ's configuration that are not used as they are.
        effective: Every key, its value and where it was given, secrets hidden.
    """

    settings: NodeSettings
    remarks: tuple[Remark, ...]
    effective: tuple[Shown, ...]


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Loaded:
    """Merge the sources, check them, and return the configuration.

    Args:
        file: YAML or TOML.
        environment: Variables; only those that name a key are read.
        flags: Key name to text.

    Raises:
        ConfigInvalid: With the key, its value and the allowed values.
    """
    in_file = from_file(file) if file else {}
    given, remarks = translated(
        {**in_file, **from_environment(environment or {}), **from_flags(flags or {})}
    )
    values = Values(given)
    settings = _settings(values)
    effective = {key.name: shown(key, settings, values) for key in KEYS}
    for rule in rules(settings):
        if not rule.holds:
            wrong = effective[rule.key]
            raise ConfigInvalid(
                f"{wrong.name}={wrong.value} ({wrong.source}): must be {rule.allowed}"
            )
    return Loaded(settings, remarks, tuple(effective.values()))


def _settings(values: Values) -> NodeSettings:
    if "persistenceConfig.path" not in values:
        raise values.refuse("persistenceConfig.path", "a path; it has no default")
    given = {key.path: values.get(key.name) for key in KEYS if key.path and key.name in values}
    given["auth.producer"] = producer_providers(values)
    given["auth.worker"] = worker_providers(values)
    given |= _addresses(values)
    peers = given["peers"]
    assert isinstance(peers, tuple)
    given["cluster_secret"] = _cluster_secret(values, nodes=len(peers))
    return _built(NodeSettings, given)


def _built(section: type[Section], given: Mapping[str, object], path: str = "") -> Section:
    """Return a section, its own sections included.

    Args:
        given: By a field's path; a field that is not there has its default.
    """
    made: dict[str, object] = {}
    for each in fields(section):
        at = f"{path}.{each.name}" if path else each.name
        if inner := section_of(each):
            made[each.name] = _built(inner, given, at)
        elif at in given:
            made[each.name] = given[at]
    return section(**made)


def _addresses(values: Values) -> dict[str, object]:
    """Return this node's id, its listening address and every peer."""
    links = values.table("raft.peers")
    if not links and "clusterSecret" in values:
        # A node with a clusterSecret and no peers would bootstrap a cluster of its own, which can
        # never join the intended one.
        raise values.refuse(
            "raft.peers",
            "this node and those it is to meet, since clusterSecret is set; this node alone for a "
            "new cluster of one",
        )
    if not links:
        node_id = str(values.in_effect("raft.selfId"))
        links = {node_id: _reached(values.text("raft.bindAddr", _DEFAULT_LINK))}
    else:
        node_id = values.text("raft.selfId")
        if node_id not in links:
            raise values.refuse("raft.selfId", f"one of raft.peers: {', '.join(sorted(links))}")
    if len(set(links.values())) != len(links):
        raise values.refuse("raft.peers", "a different address for each node")
    listening = values.text("raft.bindAddr", links[node_id])
    bound = Address.parse(_reached(listening))
    return {
        "node_id": node_id,
        # Empty for every address of the machine.
        "link_host": "" if listening.startswith(":") else bound.host,
        "link_port": bound.port,
        "peers": _peers(values, links),
    }


def _reached(listening: str) -> str:
    """Return an address that reaches a listening one: the loopback address for `:port`."""
    return f"127.0.0.1{listening}" if listening.startswith(":") else listening


def _peers(values: Values, links: Mapping[str, str]) -> tuple[PeerAddress, ...]:
    urls = values.table("raft.peerHTTPAddrs")
    if not set(urls) <= set(links):
        raise values.refuse("raft.peerHTTPAddrs", f"ids of raft.peers: {', '.join(sorted(links))}")
    port = values.in_effect("port")
    scheme = "https" if "tls.certFile" in values else "http"
    # Sorted: the same order on every node, whatever the order in its file.
    return tuple(
        PeerAddress(
            id=peer, link=links[peer], http=urls.get(peer) or _url(scheme, links[peer], port)
        )
        for peer in sorted(links)
    )


def _url(scheme: str, link: str, port: object) -> str:
    host = Address.parse(link).host
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _cluster_secret(values: Values, *, nodes: int) -> str:
    if "clusterSecret" in values:
        return values.text("clusterSecret")
    if nodes > 1:
        raise values.refuse(
            "clusterSecret", "at least 16 characters, the same on every node, when there are peers"
        )
    # A cluster of one shares no secret with another node, and its link must still admit none.
    return secrets.token_hex(32)
