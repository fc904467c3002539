"""Commands `cluster join`, `remove`, `replace`, `rebalance`: which nodes form the cluster."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping

from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import document, note, rows_of, table
from codeq_cluster.cli.support.progress import waiting
from codeq_cluster.cli.support.target import Caller
from codeq_cluster.client import Operator, Refused

_WAIT_S_DEFAULT = 600
_WAIT_S_MAX = 86_400
_LOOK_EVERY_S = 0.5
_REBALANCE_S_DEFAULT = 30


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    join = verbs.add_parser(
        "join",
        help="add a node",
        description="Add a node: as a learner, and as a voter as soon as it holds the log. Start "
        "it with its own id, address and an empty data directory, before or after this command. "
        "Its raft.peers must list itself and at least one member. A node that lists only itself "
        "starts a new cluster, which joins no other; to add it after all, stop it and empty its "
        "data directory.",
    )
    _name(join, "node", "its id")
    _addresses(join)
    _waits(join)
    asks(join, Operator, _join, caller=Caller.OPERATOR)

    remove = verbs.add_parser(
        "remove",
        help="remove a node for good",
        description="Remove a node for good, after its leaderships are transferred. Refused if the "
        "remaining nodes would have no majority.",
    )
    _name(remove, "node", "its id")
    _tries(remove)
    asks(remove, Operator, _remove, caller=Caller.OPERATOR)

    replace = verbs.add_parser(
        "replace",
        help="add a node, then remove another one",
        description="Add a node, wait until it votes, then remove another one.",
    )
    _name(replace, "old", "id of the node that goes")
    _name(replace, "new", "id of the node that comes")
    _addresses(replace)
    _waits(replace)
    asks(replace, Operator, _replace, caller=Caller.OPERATOR)

    rebalance = verbs.add_parser(
        "rebalance",
        help="return leaderships to the preferred nodes now",
        description="Transfer every shard's leadership to its preferred node. That also happens by "
        "itself, a few seconds after that node is up to date.",
    )
    number(
        rebalance,
        "--wait",
        f"for a node that is down or behind; 0 to ask once; default: {_REBALANCE_S_DEFAULT}",
        metavar="SECONDS",
        default=_REBALANCE_S_DEFAULT,
    )
    asks(rebalance, Operator, _rebalance, caller=Caller.OPERATOR)


def _name(parser: argparse.ArgumentParser, name: str, words: str) -> None:
    parser.add_argument(name, metavar=name.upper(), help=words)


def _addresses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--addr", required=True, metavar="HOST:PORT", help="its address for the other nodes"
    )
    parser.add_argument("--http", required=True, metavar="URL", help="its URL for clients")


def _tries(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="only show what it would do to each shard"
    )


def _waits(parser: argparse.ArgumentParser) -> None:
    _tries(parser)
    number(
        parser,
        "--wait",
        f"for the node to become a voter; 0 not to wait; default: {_WAIT_S_DEFAULT}",
        metavar="SECONDS",
        default=_WAIT_S_DEFAULT,
    )


async def _join(operator: Operator, options: argparse.Namespace) -> Exit:
    _check_wait(options.wait)
    if not await _begin(operator, options, options.node):
        return Exit.OK
    return await _wait(operator, options.node, options.wait)


async def _remove(operator: Operator, options: argparse.Namespace) -> None:
    ahead = await operator.remove(options.node, dry_run=True)
    _show_ahead(ahead, options)
    if options.dry_run:
        return
    done = await operator.remove(options.node)
    _show_done(done, options)
    if done.get("changed"):
        note(f"{options.node} is removed: stop it, if it runs")
    else:
        note(f"{options.node} is no member: there is nothing to do")


async def _replace(operator: Operator, options: argparse.Namespace) -> Exit:
    if options.old == options.new:
        raise UsageRefused("the two ids must differ; a node that lost its disk rejoins by itself")
    # Check first: a removal that would be refused, or a node that is missing, must not start a
    # join.
    if not {options.old, options.new} & (await _nodes(operator)).keys():
        raise UsageRefused(f"{options.old} is no member of this cluster: nothing to replace")
    _check_wait(options.wait)
    patience_s = 0 if options.dry_run else options.wait or _WAIT_S_DEFAULT
    try:
        await _removed(operator, options.old, patience_s, dry_run=True)
    except Refused as refused:
        # A node that is the only one may go once the new one votes.
        if refused.code != "last-voter":
            raise
    if not await _begin(operator, options, options.new, instead_of=options.old):
        return Exit.OK
    waited = await _wait(operator, options.new, patience_s)
    if waited is not Exit.OK:
        note(f"{options.old} stays until then: run this again")
        return waited
    try:
        done = await _removed(operator, options.old, patience_s)
    except Refused as refused:
        if refused.code != "asked-itself":
            raise
        # It was the only node that could be asked.
        note(f"to remove {options.old}, run this again with --url {options.http}")
        return Exit.ERROR
    _show_done(done, options)
    note(f"{options.old} is removed: stop it, if it runs")
    return Exit.OK


async def _removed(
    operator: Operator, node_id: str, patience_s: int, *, dry_run: bool = False
) -> Mapping[str, object]:
    """Remove a node; for `patience_s` seconds ask again while that is refused for now only."""
    until = time.monotonic() + patience_s
    told = False
    while True:
        try:
            return await operator.remove(node_id, dry_run=dry_run)
        except Refused as refused:
            if not refused.retryable or time.monotonic() >= until:
                raise
            if not told:
                note(f"{refused}; waiting until {node_id} may go")
                told = True
        await asyncio.sleep(_LOOK_EVERY_S)


async def _rebalance(operator: Operator, options: argparse.Namespace) -> Exit:
    _check_wait(options.wait)
    answers: dict[int, Mapping[str, object]] = {}
    until = time.monotonic() + options.wait
    with waiting("not every shard is led by the node that should lead it"):
        while refusals := await _hand_back(operator, answers):
            if time.monotonic() >= until:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
    if options.json:
        document({"transferred": list(answers.values()), "left": sorted(refusals)}, compact=True)
    else:
        for answer in answers.values():
            note(f"shard {answer.get('shard')} is led by {answer.get('leader')}")
        for shard, said in sorted(refusals.items()):
            note(f"shard {shard} is not led by {said}")
        if not answers and not refusals:
            note("every shard is led by the node that should lead it")
    return Exit.ERROR if refusals else Exit.OK


async def _hand_back(
    operator: Operator, answers: dict[int, Mapping[str, object]]
) -> dict[int, str]:
    """Ask each shard's leader once to transfer to the preferred node; return the refusals."""
    refusals = {}
    for shard in rows_of((await operator.cluster()).get("shards")):
        number, preferred = int(str(shard.get("shard"))), str(shard.get("preferred"))
        if shard.get("leader") == preferred:
            continue
        try:
            answers[number] = await operator.transfer(number, to=preferred)
        except Refused as refused:
            if not refused.retryable:
                raise
            # The node is away, or it is behind and may soon catch up.
            refusals[number] = f"{preferred}, which should lead it: {refused}"
    return refusals


async def _begin(
    operator: Operator, options: argparse.Namespace, node_id: str, *, instead_of: str = ""
) -> bool:
    """Show what adding a node does to each shard, then add it; False if it was only shown.

    With `instead_of`, also show what removing that node does afterwards.
    """
    ahead = await operator.join(node_id, addr=options.addr, http_addr=options.http, dry_run=True)
    if instead_of:
        ahead = {**ahead, "then": [_without(row, instead_of) for row in rows_of(ahead["shards"])]}
    _show_ahead(ahead, options)
    if options.dry_run:
        return False
    _show_done(await operator.join(node_id, addr=options.addr, http_addr=options.http), options)
    return True


def _check_wait(seconds: int) -> None:
    if not 0 <= seconds <= _WAIT_S_MAX:
        raise UsageRefused(f"--wait {seconds}: must be 0 to {_WAIT_S_MAX}")


async def _wait(operator: Operator, node_id: str, seconds: int) -> Exit:
    if seconds == 0:
        note(f"{node_id} is added: start it")
        return Exit.OK
    note(f"{node_id} is added: start it; waiting until it votes")
    try:
        with waiting(f"{node_id} does not vote yet"):
            async with asyncio.timeout(seconds):
                await _voting(operator, node_id)
    except TimeoutError:
        note(f"after {seconds} s {await _lacks(operator, node_id)}")
        return Exit.ERROR
    note(f"{node_id} votes in every shard")
    return Exit.OK


async def _voting(operator: Operator, node_id: str) -> None:
    told = ""
    while not (node := (await _nodes(operator)).get(node_id, {})).get("voter"):
        if (text := kept_away(node)) not in ("", told):
            note(text)
            told = text
        await asyncio.sleep(_LOOK_EVERY_S)


async def _lacks(operator: Operator, node_id: str) -> str:
    node = (await _nodes(operator)).get(node_id, {})
    if node.get("connected") is True:
        return f"{node_id} does not vote yet; it will once it holds the log"
    return kept_away(node) or (
        f"no node {node_id} is connected at {node.get('addr')}: it will vote once it is started; "
        "its log and /readyz say what keeps it; if it is ready, it was started with itself alone "
        "in raft.peers, and has begun a cluster of its own: empty its data directory"
    )


def kept_away(node: Mapping[str, object]) -> str:
    """Return what to do if the cluster and a node refuse each other; empty if unknown."""
    remedy = node.get("remedy")
    return f"{node.get('id')} cannot connect: {remedy}" if remedy else ""


async def _nodes(operator: Operator) -> dict[str, Mapping[str, object]]:
    return {str(node.get("id")): node for node in rows_of((await operator.cluster()).get("nodes"))}


def _show_done(effect: Mapping[str, object], options: argparse.Namespace) -> None:
    if options.json:
        document(effect, compact=True)


def _show_ahead(effect: Mapping[str, object], options: argparse.Namespace) -> None:
    if options.json:
        if options.dry_run:
            document(effect, compact=True)
        return
    table(
        ("SHARD", "LEADER", "VOTERS", "VOTERS AFTER", "LEARNERS AFTER", "QUORUM", "ANSWERING"),
        (
            [
                row.get("shard"),
                row.get("leader"),
                _names(row.get("voters")),
                _names(row.get("votersAfter")),
                _names(row.get("learnersAfter")),
                f"{row.get('quorum')} -> {row.get('quorumAfter')}",
                row.get("answering"),
            ]
            for row in rows_of(effect.get("shards"))
        ),
    )

    if rows := rows_of(effect.get("then")):
        print("\nthen, once all of them vote:\n")
        table(
            ("SHARD", "VOTERS", "VOTERS AFTER", "QUORUM"),
            (
                [
                    row["shard"],
                    _names(row["voters"]),
                    _names(row["votersAfter"]),
                    f"{row['quorum']} -> {row['quorumAfter']}",
                ]
                for row in rows
            ),
        )


def _without(row: Mapping[str, object], node_id: str) -> dict[str, object]:
    """Return the effect of removing a node from a shard once all joining nodes vote."""
    voters = sorted({*_listed(row.get("votersAfter")), *_listed(row.get("learnersAfter"))})
    after = [each for each in voters if each != node_id]
    return {
        "shard": row.get("shard"),
        "voters": voters,
        "votersAfter": after,
        "quorum": len(voters) // 2 + 1,
        "quorumAfter": len(after) // 2 + 1,
    }


def _names(value: object) -> str:
    return " ".join(_listed(value))


def _listed(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []
