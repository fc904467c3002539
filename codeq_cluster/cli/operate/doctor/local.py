"""Local: checks of a node's settings on this machine: configuration, disk, certificates."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from codeq_cluster.auth import Role
from codeq_cluster.cli.operate.doctor import features
from codeq_cluster.cli.operate.doctor.finding import Finding, certificate, fail, ok, warn
from codeq_cluster.config import Loaded
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import ArtifactProvider, ArtifactSettings, AuthSettings, NodeSettings
from codeq_cluster.wire.certificates import http_certificates, link_certificates

# A full disk stops a node; below this, a few minutes of log no longer fit.
_FREE_BYTES_FAIL = 512 * 2**20
_FREE_SHARE_WARN = 0.2  # The same threshold as the operator's alert.
_GIB = 2**30


def local_findings(name: str, loaded: Loaded) -> list[Finding]:
    """Check the files and directories that a valid configuration names.

    Args:
        name: The name of the configuration in findings.
    """
    settings = loaded.settings
    if loaded.remarks:
        names = ", ".join(remark.name for remark in loaded.remarks)
        todo = "`codeq-cluster config` says what becomes of each"
        first = warn("config", name, f"valid, but not taken as they are: {names}", todo)
    else:
        first = ok("config", name, f"valid, node {settings.node_id} of {len(settings.peers)}")
    return [
        first,
        *_data(settings),
        *_certificates(settings),
        _operator(name, settings.auth),
        _artifacts(name, settings.artifacts),
        features.webhooks(name, settings.webhooks.signing),
    ]


def _operator(name: str, settings: AuthSettings) -> Finding:
    """Judge whether a token can have the operator's scope; an issuer's tokens are unknown."""
    providers = (*settings.producer, *settings.worker)
    if any(provider.kind != "static" for provider in providers):
        return ok("operator", name, f"whom an issuer gives the scope {Role.OPERATOR}")
    named = sorted(
        token.subject
        for provider in providers
        for token in provider.tokens
        if Role.OPERATOR in token.scopes
    )
    if not named:
        text = "nobody: no node can be let in, no backup taken, no upgrade finished"
        return warn("operator", name, text, f"give a token the scope {Role.OPERATOR}")
    return ok("operator", name, ", ".join(dict.fromkeys(named)))


def _artifacts(name: str, settings: ArtifactSettings) -> Finding:
    place = settings.directory
    if settings.provider is ArtifactProvider.LOCAL and place is not None and not _writable(place):
        todo = f"let this user write to {place}, or run this as the node's user"
        return fail("artifacts", str(place), "this user may not write there", todo)
    return features.artifacts(name, settings.provider)


def _data(settings: NodeSettings) -> list[Finding]:
    path = settings.data_dir
    place = _nearest_existing(path)
    if not _writable(path):
        todo = f"let this user write to {place}, or run this as the node's user"
        return [fail("data", str(path), "this user may not write there", todo)]
    return [_owner(settings), _space(path, place)]


def _owner(settings: NodeSettings) -> Finding:
    file = settings.data_dir / "node.json"
    about = str(settings.data_dir)
    try:
        made = json.loads(file.read_bytes())
        was = (made["clusterId"], made["nodeId"], made["shards"])
    except FileNotFoundError:
        return ok("data", about, "new: the node makes it at its first start")
    except (OSError, ValueError, KeyError, TypeError) as error:
        todo = "restore the directory from a copy of this node's own data"
        return fail("data", about, f"node.json cannot be read: {error!r}", todo)
    wanted = (settings.cluster_id, settings.node_id, settings.shards)
    if was != wanted:
        text = "made for cluster {}, node {}, {} shards".format(*was)
        todo = "name this node's own directory, or set clusterId, raft.selfId and numShards so"
        return fail("data", about, text, todo)
    return ok("data", about, f"of node {settings.node_id}, {settings.shards} shards")


def _space(path: Path, place: Path) -> Finding:
    usage = shutil.disk_usage(place)
    share = usage.free / usage.total
    text = f"{usage.free / _GIB:.1f} GiB free, {share:.0%}"
    todo = "make room or a larger disk: a node stops when it is full"
    if usage.free < _FREE_BYTES_FAIL:
        return fail("disk", str(path), text, todo)
    if share < _FREE_SHARE_WARN:
        return warn("disk", str(path), text, todo)
    return ok("disk", str(path), text)


def _certificates(settings: NodeSettings) -> list[Finding]:
    found = []
    try:
        http = http_certificates(settings.tls)
        link = link_certificates(settings.link_tls, node_id=settings.node_id)
    except ConfigInvalid as error:
        return [fail("certificate", "files", str(error), "put files there that fit each other")]
    for each, file in ((http, settings.tls.cert_file), (link, settings.link_tls.cert_file)):
        if each is not None:
            found.append(certificate(str(file), each.left_s))
    return found


def _writable(path: Path) -> bool:
    return os.access(_nearest_existing(path), os.W_OK | os.X_OK)


def _nearest_existing(path: Path) -> Path:
    """Return the directory, or its nearest parent that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
