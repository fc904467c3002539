"""Nodes: checks of a running node, from outside."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from codeq_cluster import __version__
from codeq_cluster.cli.operate.doctor import features
from codeq_cluster.cli.operate.doctor.finding import Finding, certificate, fail, ok, skipped, warn
from codeq_cluster.cli.operate.members import Member, answered_as, members_of, owners, strange
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.times import Times
from codeq_cluster.client import Probe, Refused, Unreachable, Untrusted
from codeq_cluster.client.transport import trust
from codeq_cluster.settings import ArtifactProvider, Durability, LogSync, Signing

_TIMEOUT_S = 5.0
# Leases and token times tolerate this much difference between clocks.
_SKEW_S_WARN = 2.0
_SKEW_S_FAIL = 60.0
_BY: Mapping[str, str] = {LogSync.THREAD: "a thread", LogSync.KERNEL: "the kernel"}


async def cluster_findings(
    urls: Sequence[str], token: str, ca: Path | None, *, times: Times
) -> list[Finding]:
    """Check the nodes at these URLs, and then all other members that they know of."""
    answers = await asyncio.gather(*(_node_findings(url, token, ca) for url in urls))
    members = members_of(status for _, status in answers)
    known = {answered_as(status) for _, status in answers}
    asked = {url.rstrip("/") for url in urls}
    others = [
        member
        for member in members.values()
        if member.url and member.id not in known and member.url.rstrip("/") not in asked
    ]
    more = await asyncio.gather(*(_node_findings(each.url, token, ca) for each in others))
    members = members_of(status for _, status in (*answers, *more))
    answered = known | {answered_as(status) for _, status in more}
    silent = [
        url.rstrip("/") for url, (found, _) in zip(urls, answers, strict=True) if found[0].todo
    ]
    owner = owners(silent, members, answered=answered)
    doubt = strange(members, answered=answered)
    return [
        *chain.from_iterable(
            _named(found, answered_as(status) or owner.get(url.rstrip("/"), ""), doubt=doubt)
            for url, (found, status) in zip(urls, answers, strict=True)
        ),
        *chain.from_iterable(
            _other(members[member.id], _named(found, member.id))
            for member, (found, _) in zip(others, more, strict=True)
        ),
        *(_away(member, times) for member in members.values() if member.away_since),
    ]


def _named(found: Sequence[Finding], node: str, *, doubt: str = "") -> list[Finding]:
    """Name the node in the finding whether its address answers, or say whose it may be."""
    reachable, *rest = found
    text = f"{node}: {reachable.text}" if node else reachable.text
    if not node and reachable.todo and doubt:
        text += f"; {doubt}"
    return [replace(reachable, text=text), *rest]


def _other(member: Member, found: list[Finding]) -> list[Finding]:
    """Return the findings about a member that was not named.

    If it cannot be reached, its address may be for the other nodes alone.
    """
    if not found[0].todo:
        return found
    if member.away_since:
        return []
    text = f"{member.id} is not reachable from here, but connected with "
    return [skipped("reachable", member.url, text + " and ".join(sorted(member.reached_by)))]


def _away(member: Member, times: Times) -> Finding:
    todo = "start it, or see docs/runbooks/lost-node.md"
    if member.alone:
        todo = (
            "it has begun a cluster of its own, with itself alone in raft.peers: stop it, empty "
            "its data directory, name members there, and start it again"
        )
    return fail("member", member.url or member.id, f"{member.id}: {member.away(times)}", todo)


async def _node_findings(url: str, token: str, ca: Path | None) -> tuple[list[Finding], object]:
    """Check one node, and return its status too; without one if it cannot be reached."""
    async with Probe(url, token=token, timeout_s=_TIMEOUT_S, ca_file=ca) as probe:
        reached = await _reachable(url, probe)
        if reached.todo:
            return [reached], None
        status, of_status = await _of_status(url, probe)
        found = [
            reached,
            await _ready(url, probe),
            *await _of_description(url, probe),
            *of_status,
            await _clock(url, probe),
        ]
    if urlsplit(url).scheme == "https":
        found.append(await _presented(url, ca))
    return found, status


async def _reachable(url: str, probe: Probe) -> Finding:
    asked = time.monotonic()
    try:
        await probe.healthy()
    except Untrusted as error:
        return fail("reachable", url, str(error), "name the authority's certificate with --ca")
    except Unreachable:
        todo = "start the node, or see its address, port and firewall"
        return fail("reachable", url, "it takes no connection", todo)
    except Refused as error:
        todo = "see that the URL is a node's, and the end of the node's log"
        return fail("reachable", url, str(error), todo, Exit.API)
    return ok("reachable", url, f"it answers in {(time.monotonic() - asked) * 1000:.0f} ms")


async def _ready(url: str, probe: Probe) -> Finding:
    try:
        await probe.ready()
    except (Refused, Unreachable) as error:
        todo = "wait if it has just started; else see that a majority of nodes run and connect"
        return fail("ready", url, str(error), todo)
    return ok("ready", url, "every shard has a leader and this replica is caught up")


async def _of_description(url: str, probe: Probe) -> list[Finding]:
    """Judge the version and settings in a node's description of its API."""
    try:
        described = await probe.described()
    except (Refused, Unreachable) as error:
        return [fail("version", url, str(error), "upgrade the node", Exit.API)]
    return [_version(url, described.get("info")), *_features(url, described.get("x-node"))]


def _features(url: str, said: object) -> list[Finding]:
    if not isinstance(said, dict):
        return []  # An earlier release; the line about its version shows that.
    try:
        provider = ArtifactProvider(str(said.get("artifacts")))
        signing = Signing(str(said.get("webhooks")))
    except ValueError:
        return []  # A later one.
    return [features.artifacts(url, provider), features.webhooks(url, signing)]


def _version(url: str, about: object) -> Finding:
    version = str(about.get("version", "unknown")) if isinstance(about, dict) else "unknown"
    if version != __version__:
        todo = "bring all to one version, one node at a time"
        return warn("version", url, f"{version}, and this program is {__version__}", todo)
    return ok("version", url, version)


async def _of_status(url: str, probe: Probe) -> tuple[object, list[Finding]]:
    """Judge the token by whether the node shows its status; return that status, judged too."""
    try:
        status = await probe.raft_status()
    except Refused as error:
        code = Exit.AUTH if error.status in (401, 403) else Exit.API
        todo = "pass a token the node takes, with --token or CODEQ_TOKEN; its log says why"
        return None, [fail("token", url, str(error), todo, code)]
    except Unreachable as error:
        return None, [fail("token", url, str(error), "see the end of the node's log")]
    told = [ok("token", url, "it is taken"), *_durability(url, status), *_asides(url, status)]
    return status, told


def _durability(url: str, status: object) -> list[Finding]:
    """Judge which failures an acknowledged write survives, and report who syncs the log."""
    match status:
        case {"groups": [{"durability": str(durability), "logSync": str(log_sync)}, *_]}:
            pass
        case _:
            return []  # An earlier release; the line about its version shows that.
    if durability != Durability.FSYNC:
        text = f"{durability}: an answered write can be lost in a power cut"
        return [warn("durability", url, text, "set durability to fsync where tasks must not be")]
    return [ok("durability", url, f"fsync, the log is synced by {_BY.get(log_sync, log_sync)}")]


def _asides(url: str, status: object) -> list[Finding]:
    """Judge whether the broker has failed at tasks or items and set them aside."""
    groups = status.get("groups") if isinstance(status, dict) else None
    found = [each.get("aside") for each in groups or () if isinstance(each, dict)]
    counts = [each for each in found if isinstance(each, int)]
    if not counts:
        return []  # An earlier release; the line about its version shows that.
    if any(counts):
        text = f"{sum(counts)} tasks or items are set aside, because the broker failed at them"
        todo = "see docs/runbooks/set-aside.md; their admins list them with aside ls"
        return [warn("aside", url, text, todo)]
    return [ok("aside", url, "nothing is set aside")]


async def _clock(url: str, probe: Probe) -> Finding:
    try:
        ahead_s = await probe.clock_ahead_s()
    except (Refused, Unreachable) as error:
        return fail("clock", url, str(error), "see what stands between here and the node")
    return clock(url, ahead_s)


def clock(url: str, ahead_s: float) -> Finding:
    """Judge a node's clock that is ahead of ours by so much."""
    text = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    todo = "set both clocks by NTP: leases, delays and tokens go by them"
    if abs(ahead_s) > _SKEW_S_FAIL:
        return fail("clock", url, text, todo)
    if abs(ahead_s) > _SKEW_S_WARN:
        return warn("clock", url, text, todo)
    return ok("clock", url, "as this machine's, within 2 s")


async def _presented(url: str, ca: Path | None) -> Finding:
    """Judge the certificate that the node presents."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(
                parts.hostname, parts.port or 443, ssl=trust(ca)
            )
    except (OSError, TimeoutError) as error:
        return fail("certificate", url, str(error) or "no answer", "see the node's log")
    presented = writer.get_extra_info("peercert")
    writer.close()
    return certificate(url, ssl.cert_time_to_seconds(str(presented["notAfter"])) - time.time())
