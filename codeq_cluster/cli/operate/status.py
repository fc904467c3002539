"""Command `status`: the nodes of a cluster and its shards, as the nodes report them.

The nodes named to it are asked for all members, and each member is asked at its own address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from msgspec import Struct

from codeq_cluster.cli.operate.look import ShardLine
from codeq_cluster.cli.operate.members import Member, members_of, owners, strange
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import TEXT_CHARS_MAX, note, table
from codeq_cluster.cli.support.target import add_target, ca_of, say_default, token_of, urls_of
from codeq_cluster.cli.support.times import Times, add_times, times_of
from codeq_cluster.client import Probe, Refused, Unreachable, Untrusted

_TIMEOUT_S = 5.0


class ReplicaAnswer(ShardLine, rename="camel", kw_only=True):
    """One replica of one shard, as its node sees it; `log_sync` says who syncs its log."""

    self_id: str
    is_leader: bool
    digest: str = ""
    log_sync: str = ""


class _Status(Struct):
    groups: tuple[ReplicaAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """One node's answer.

    Attributes:
        id: Empty if nobody knows which node this is.
        healthy: None if it cannot be asked from here, as is `ready`.
        problem: Why it is not ready or did not answer; empty if all is well.
        code: The exit code of the command for this node.
        away_since: Since when other nodes cannot reach it; empty if they can.
        status: Its answer of `GET /raft/status`; None for none.
    """

    url: str
    id: str = ""
    healthy: bool | None = False
    ready: bool | None = False
    problem: str
    code: Exit
    shards: tuple[ReplicaAnswer, ...] = ()
    away_since: str = ""
    status: object = None


class ReplicaLag(Struct, rename="camel"):
    """A shard on one node; `lag` counts entries that are committed but not applied there."""

    node: str
    applied_index: int
    lag: int
    digest: str


class ShardSummary(Struct, rename="camel"):
    """A shard as its replicas together report it; None for no leader."""

    shard: int
    leader: str | None
    term: int
    commit_index: int
    replicas: list[ReplicaLag]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("status", help="show nodes and shards", description=__doc__)
    add_target(parser)
    add_times(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> Exit:
    say_default(options)
    reports = asyncio.run(
        _ask_all(urls_of(options), token_of(options), ca_of(options), times_of(options))
    )
    if options.json:
        print(json.dumps(_plain(reports), indent=2))
    else:
        _print(reports)
    return max(report.code for report in reports)


async def _ask_all(
    urls: Sequence[str], token: str, ca: Path | None, times: Times
) -> list[NodeAnswer]:
    """Ask the nodes at the URLs, and then the other members that they know of."""
    asked = [url.rstrip("/") for url in urls]
    named = await asyncio.gather(*(_ask(url, token, ca) for url in asked))
    members = members_of(report.status for report in named)
    at = {member.url.rstrip("/"): member.id for member in members.values()}
    # A balancer, or a node that has two names, answers as a node that is there already.
    reports = {report.id or at.get(report.url) or report.url: report for report in named}
    others = [each for each in members.values() if each.id not in reports and each.url]
    for member, report in zip(
        others,
        await asyncio.gather(*(_ask(each.url, token, ca) for each in others)),
        strict=True,
    ):
        reports[member.id] = report
    members = members_of(report.status for report in reports.values())
    reports = _owned(reports, members)
    judged = [_judged(report, members.get(key), asked, times) for key, report in reports.items()]
    return sorted(judged, key=lambda report: report.id or "~")


def _owned(
    reports: Mapping[str, NodeAnswer], members: Mapping[str, Member]
) -> dict[str, NodeAnswer]:
    """Give each address without an answer to the member that it must be of, or say of whom it may.

    Args:
        reports: By the member's id, or by the address if nobody knows whose it is.
        members: All that those who answered know of.
    """
    answered = {report.id for report in reports.values()}
    silent = [key for key, report in reports.items() if key not in members and not report.healthy]
    owner = owners(silent, members, answered=answered)
    owned = {key: report for key, report in reports.items() if key not in silent}
    for url in silent:
        problem = reports[url].problem
        if url not in owner:
            problem = "; ".join(filter(None, (problem, strange(members, answered=answered))))
        owned[owner.get(url, url)] = replace(reports[url], problem=problem)
    return owned


def _judged(
    report: NodeAnswer, member: Member | None, asked: Sequence[str], times: Times
) -> NodeAnswer:
    """Add what the other members say of a node to what was learned by asking it."""
    if member is None:
        return report
    report = replace(report, id=member.id)
    if away := member.away(times):
        problem = "; ".join(filter(None, (report.problem, away)))
        code = max(report.code, Exit.ERROR)
        return replace(report, problem=problem, code=code, away_since=member.since)
    if report.status is None and not report.healthy and report.url not in asked:
        by = " and ".join(sorted(member.reached_by))
        text = f"not reachable from here, but connected with {by}"
        return replace(report, healthy=None, ready=None, problem=text, code=Exit.OK)
    return report


async def _ask(url: str, token: str, ca: Path | None) -> NodeAnswer:
    healthy = ready = False
    problem, code = "", Exit.OK
    shards: tuple[ReplicaAnswer, ...] = ()
    status: object = None
    async with Probe(url, token=token, timeout_s=_TIMEOUT_S, ca_file=ca) as probe:
        try:
            await probe.healthy()
            healthy = True
            status = await probe.raft_status()
            shards = _parsed(status)
            await probe.ready()
            ready = True
        except Untrusted as error:
            problem, code = str(error), Exit.ERROR
        except Unreachable:
            problem, code = "no connection", Exit.ERROR
        except Refused as error:
            problem = str(error)
            code = {401: Exit.AUTH, 403: Exit.AUTH, 503: Exit.ERROR}.get(error.status, Exit.API)
    return NodeAnswer(
        url=url,
        id=shards[0].self_id if shards else "",
        healthy=healthy,
        ready=ready,
        problem=problem,
        code=code,
        shards=shards,
        status=status,
    )


def _parsed(status: object) -> tuple[ReplicaAnswer, ...]:
    """Read `GET /raft/status`.

    Raises:
        Refused: The answer has another form.
    """
    try:
        return msgspec.convert(status, _Status).groups
    except msgspec.ValidationError as error:
        raise Refused(f"a status in an unknown form: {error}", status=200) from error


def _plain(reports: Sequence[NodeAnswer]) -> dict[str, object]:
    """Return the JSON document, named as in the HTTP API."""
    return {
        "nodes": [
            {
                "id": report.id or None,
                "url": report.url,
                "healthy": report.healthy,
                "ready": report.ready,
                "problem": report.problem or None,
                "awaySince": report.away_since or None,
                "logSync": _log_sync(report) or None,
                "leads": _leads(report),
            }
            for report in reports
        ],
        "shards": msgspec.to_builtins(_shards(reports)),
    }


def _print(reports: Sequence[NodeAnswer]) -> None:
    table(
        ("NODE", "URL", "HEALTHY", "READY", "LEADS", "LOG SYNC", "PROBLEM"),
        (
            (
                report.id or "?",
                report.url,
                _word(report.healthy),
                _word(report.ready),
                _leads(report),
                _log_sync(report) or "?",
                report.problem,
            )
            for report in reports
        ),
        chars_max=TEXT_CHARS_MAX,
    )
    summaries = _shards(reports)
    if summaries:
        print()
        table(
            ("SHARD", "LEADER", "TERM", "COMMIT", "APPLIED (LAG)"),
            (
                (
                    shard.shard,
                    shard.leader or "none",
                    shard.term,
                    shard.commit_index,
                    "  ".join(
                        f"{one.node}={one.applied_index} ({one.lag})" for one in shard.replicas
                    ),
                )
                for shard in summaries
            ),
        )
    if any(report.code for report in reports):
        note("codeq-cluster doctor says what is wrong and what to do")


def _leads(report: NodeAnswer) -> list[int]:
    return [shard.shard_idx for shard in report.shards if shard.is_leader]


def _log_sync(report: NodeAnswer) -> str:
    """Return who syncs a node's log, the same for all its shards; empty if unknown."""
    return report.shards[0].log_sync if report.shards else ""


def _word(value: bool | None) -> str:
    return "?" if value is None else "yes" if value else "NO"


def _shards(reports: Sequence[NodeAnswer]) -> list[ShardSummary]:
    """Merge the replicas of each shard; the leader of the highest term is believed.

    A node that knows no other, and that the others cannot reach, may lead a cluster of its own.
    """
    replicas: dict[int, list[tuple[str, ReplicaAnswer]]] = {}
    for report in reports:
        if report.away_since and not any(shard.peers for shard in report.shards):
            continue
        for shard in report.shards:
            replicas.setdefault(shard.shard_idx, []).append((report.id, shard))
    summaries = []
    for number, found in sorted(replicas.items()):
        newest = max((shard for _, shard in found), key=lambda shard: (shard.term, shard.is_leader))
        commit = max(shard.commit_index for _, shard in found)
        lags = [
            ReplicaLag(node, each.applied_index, max(0, commit - each.applied_index), each.digest)
            for node, each in found
        ]
        summaries.append(ShardSummary(number, newest.leader_id or None, newest.term, commit, lags))
    return summaries
