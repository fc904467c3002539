"""Command `cluster`: the nodes as one of them sees the cluster, and the leader of each shard."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from codeq_cluster.cli.local import cluster_recover
from codeq_cluster.cli.operate import cluster_members, cluster_upgrade
from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import document, note, rows_of, table
from codeq_cluster.cli.support.target import Caller
from codeq_cluster.cli.support.times import add_times, dated, times_of
from codeq_cluster.client import Operator

_NODE = ("id", "httpAddr", "addr", "connected", "awaySince", "voter", "level", "leads")


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(
        commands,
        "cluster",
        "show the nodes, transfer leaderships, add and remove nodes",
        description=__doc__,
    )
    status = verbs.add_parser("status", help="show nodes, and the leader of each shard")
    add_times(status)
    asks(status, Operator, _status, caller=Caller.OPERATOR)

    transfer = verbs.add_parser(
        "transfer",
        help="transfer a shard's leadership to another node",
        description="Transfer a shard's leadership to another node. The preferred node takes it "
        "back after a while.",
    )
    transfer.add_argument("--shard", type=int, required=True, metavar="N", help="its number")
    transfer.add_argument(
        "--to", default="", metavar="NODE", help="default: the node that has most of the log"
    )
    asks(transfer, Operator, _transfer, caller=Caller.OPERATOR)
    cluster_members.add(verbs)
    cluster_upgrade.add(verbs)
    cluster_recover.add(verbs)


async def _status(operator: Operator, options: argparse.Namespace) -> Exit:
    cluster = await operator.cluster()
    away = [row for row in rows_of(cluster.get("nodes")) if not row.get("connected")]
    code = Exit.ERROR if away else Exit.OK
    if options.json:
        document(cluster, compact=True)
        return code
    table(
        ("NODE", "HTTP", "LINK", "CONNECTED", "AWAY SINCE", "VOTER", "KNOWS LEVEL", "LEADS"),
        ([row.get(name) for name in _NODE] for row in map(dated, rows_of(cluster.get("nodes")))),
        times=times_of(options),
    )
    for text in filter(None, map(cluster_members.kept_away, away)):
        print(f"\n{text}")
    print()
    table(
        ("SHARD", "LEADER", "LEVEL", "TERM", "COMMIT", "APPLIED", "PEERS (BEHIND)"),
        (
            [
                *(
                    row.get(name)
                    for name in ("shard", "leader", "level", "term", "commitIndex", "appliedIndex")
                ),
                "  ".join(_behind(row, peer) for peer in rows_of(row.get("peers"))),
            ]
            for row in rows_of(cluster.get("shards"))
        ),
    )
    return code


async def _transfer(operator: Operator, options: argparse.Namespace) -> None:
    answer = await operator.transfer(options.shard, to=options.to)
    if options.json:
        document(answer, compact=True)
        return
    print(answer.get("leader"))
    change = f"led by {answer.get('from')} before" if answer.get("changed") else "as before"
    note(f"shard {answer.get('shard')} is led by {answer.get('leader')}, {change}")


def _behind(shard: Mapping[str, object], peer: Mapping[str, object]) -> str:
    """Return a peer with the number of committed entries it is not known to hold."""
    if not peer.get("connected"):
        return f"{peer.get('id')} (away)"
    if peer.get("id") == shard.get("leader"):
        return f"{peer.get('id')} (leads)"
    commit, match = shard.get("commitIndex"), peer.get("matchIndex")
    known = isinstance(commit, int) and isinstance(match, int) and match > 0
    return f"{peer.get('id')} ({max(0, int(str(commit)) - int(str(match))) if known else '?'})"
