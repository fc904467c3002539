"""Raft: leaders, the time a majority takes, and followers that are behind."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board
from deploy.grafana.boards.terms import (
    STEP,
    growth,
    mean,
    most,
    of,
    or_nothing,
    quantile,
    rate,
    total,
)

_MINE = {"shard": "$shard"}


def raft() -> Board:
    """Return the board of the replicated log."""
    board = Board("raft", "Raft", "Who leads, how long does a majority take, who is behind?")
    board.choose("shard", "Shard", "codeq_raft_term")
    board.row("Leaders")
    board.graph(
        "Shards led, by node",
        (total(of("codeq_raft_is_leader", **_MINE), "instance"), "{{instance}}"),
        stacked=True,
        about="Together as many as there are shards. A gap is a shard without a leader.",
    )
    board.graph(
        "Changes of the leader",
        (
            most(f"increase({of('codeq_raft_leader_changes_total', **_MINE)}[{STEP}])", "shard"),
            "shard {{shard}}",
        ),
        about="As the node counts that saw the most. A restart of a node makes some.",
    )
    board.graph("Term", (most(of("codeq_raft_term", **_MINE), "shard"), "shard {{shard}}"))

    board.row("Writes")
    board.graph(
        "Entries in a second",
        (rate("codeq_raft_entry_mutations_count", "shard", **_MINE), "shard {{shard}}"),
        unit="ops",
        stacked=True,
    )
    board.graph(
        "Mutations of one entry, mean",
        (mean("codeq_raft_entry_mutations", "shard", **_MINE), "shard {{shard}}"),
        about="Requests that come together share an entry and its sync.",
    )
    board.graph(
        "Time of an entry, 99 of 100",
        (quantile(0.99, "codeq_raft_commit_seconds", "shard", **_MINE), "shard {{shard}}"),
        unit="s",
        about="From the turn that took it to its application, on the leader.",
    )
    board.graph(
        "Time of a sync",
        (quantile(0.5, "codeq_raft_fsync_seconds", "instance", **_MINE), "{{instance}}"),
        (
            quantile(0.99, "codeq_raft_fsync_seconds", "instance", **_MINE),
            "{{instance}}, 99 of 100",
        ),
        unit="s",
    )
    board.graph(
        "Syncs in a second",
        (rate("codeq_raft_fsync_seconds_count", "instance", **_MINE), "{{instance}}"),
        unit="ops",
    )
    board.graph(
        "Log kept",
        (most(of("codeq_raft_log_bytes", **_MINE), "shard"), "shard {{shard}}"),
        unit="bytes",
        about="On the node that keeps the most, for peers that are away.",
    )

    board.row("Replicas")
    board.graph(
        "Entries a peer lacks",
        (most(of("codeq_raft_peer_lag", **_MINE), "peer"), "{{peer}}"),
        about="In the shard in which it lacks the most, as its leader sees it.",
    )
    committed = of("codeq_raft_commit_index", **_MINE)
    behind = f"{committed} - {of('codeq_raft_applied_index', **_MINE)}"
    board.graph("Committed and not applied", (most(behind, "instance"), "{{instance}}"))
    board.graph(
        "Replicas out",
        (
            or_nothing(total(of("codeq_replica_out", **_MINE), "instance")),
            "{{instance}}",
        ),
        about="They take no part: the disk is full or has failed, or the state is wrong.",
    )
    board.graph(
        "Snapshots taken and installed",
        (growth("codeq_raft_snapshot_seconds_count", "instance", **_MINE), "{{instance}}"),
    )
    board.graph(
        "Time of a snapshot, mean",
        (mean("codeq_raft_snapshot_seconds", "instance", **_MINE), "{{instance}}"),
        unit="s",
    )
    board.graph(
        "States fetched again",
        (
            or_nothing(growth("codeq_replica_reseeded_total", "instance", **_MINE)),
            "{{instance}}",
        ),
        about="They were not the majority's. Never, unless something is badly wrong.",
    )

    board.row("Between the nodes")
    board.graph("Peers connected", (of("codeq_link_peers_connected"), "{{instance}}"))
    board.graph(
        "Operations sent to the leader, in a second",
        (rate("codeq_forward_seconds_count", "op"), "{{op}}"),
        unit="ops",
    )
    board.graph(
        "Time of these, 99 of 100",
        (quantile(0.99, "codeq_forward_seconds", "op"), "{{op}}"),
        unit="s",
    )
    board.graph(
        "Messages dropped",
        (growth("codeq_link_dropped_messages_total", "instance"), "{{instance}}"),
        about="No connection, or its queue was full. They are sent again.",
    )
    board.graph(
        "Connections refused or closed",
        (growth("codeq_link_refused_handshakes_total", "reason"), "{{reason}}"),
        (growth("codeq_link_bad_frames_total", "reason"), "{{reason}}"),
    )
    board.graph(
        "Messages and entries refused",
        (f"{growth('codeq_raft_refused_total', 'reason', **_MINE)} or vector(0)", "{{reason}}"),
        (growth("codeq_entries_fenced_total", **_MINE), "decided in another term"),
    )
    return board
