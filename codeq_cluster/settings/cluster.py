"""Cluster: the settings of consensus, and of the link between nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from codeq_cluster.core.bounds import EFFECTS_BYTES_MAX
from codeq_cluster.settings.key import key
from codeq_cluster.settings.kinds import MIB, PATH, member, whole


class Durability(StrEnum):
    """The failures that an acknowledged write survives on a majority of nodes."""

    FSYNC = "fsync"
    OS = "os"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Consensus of one shard."""

    durability: Durability = key(
        Durability.FSYNC,
        member(Durability),
        "what an acknowledged write survives on a majority of nodes: `fsync` a power cut, `os` a "
        "crash of the process",
        name="durability",
    )
    heartbeat_ms: int = key(
        100,
        whole(10, 10_000),
        "time between a leader's heartbeats; longer saves idle CPU and detects failures later",
        name="raft.heartbeatMS",
    )
    election_ms: int = key(
        1000,
        whole(50, 60_000),
        "a follower that hears no leader for this long, or up to twice as long, starts an "
        "election; at least 3 heartbeats",
        name="raft.electionMS",
    )
    fallback_ms: int = key(
        1500,
        whole(50, 120_000),
        "a leader that reaches no majority for this long steps down; at least 3 heartbeats",
        name="raft.fallbackMS",
    )
    turn_ms: int = key(
        1,
        whole(0, 100),
        "time between two turns of a group while operations wait; longer puts more operations in "
        "an entry and costs latency",
        name="raft.turnMS",
    )
    append_bytes_max: int = key(
        4 * MIB,
        whole(64 * 1024, 256 * MIB),
        "size of the entries in one append message; below `link.frameBytesMax`",
    )
    entry_bytes_max: int = key(
        3 * MIB,
        whole(EFFECTS_BYTES_MAX, 128 * MIB),
        "size of one entry; below `raft.appendBytesMax`",
    )
    entries_in_flight_max: int = key(
        1,
        whole(1, 1024),
        "entries of a shard that are proposed and not yet applied; operations decided meanwhile "
        "share the next entry",
    )
    cache_bytes_max: int = key(
        16 * MIB, whole(64 * 1024, 4096 * MIB), "size of a shard's recent log entries in memory"
    )
    keep_entries: int = key(
        10_000, whole(1, 100_000_000), "entries kept in the log behind the slowest peer"
    )
    log_bytes_max: int = key(
        64 * MIB,
        whole(2**20, 2**36),
        "size of a shard's log; a peer that needs older entries gets a snapshot",
    )
    log_entries_max: int = key(
        1_000_000,
        whole(1000, 10**8),
        "number of entries in a shard's log; each costs memory, however small",
    )
    snapshot_bytes_per_s: int = key(
        32 * MIB,
        whole(2**16, 2**40),
        "rate at which a shard's state is fetched from a peer",
        name="raft.snapshotBytesPerSecond",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """The node-to-node link."""

    frame_bytes_max: int = key(
        16 * MIB, whole(128 * 1024, 1024 * MIB), "size of one frame between nodes"
    )
    queue_bytes_max: int = key(
        64 * MIB, whole(MIB, 16_384 * MIB), "size of the messages waiting to be sent to one peer"
    )
    handshake_timeout_ms: int = key(
        3000, whole(10, 60_000), "time for a new connection to prove itself"
    )
    dial_timeout_ms: int = key(1000, whole(10, 60_000), "time to open a connection")
    redial_ms: int = key(100, whole(1, 60_000), "first pause before a peer is dialled again")
    redial_ms_max: int = key(
        1000,
        whole(1, 600_000),
        "longest pause before a peer is dialled again; at least `link.redialMs`",
    )
    ping_ms: int = key(
        1000, whole(10, 60_000), "a node that sends nothing to a peer for this long sends a ping"
    )
    silence_ms_max: int = key(
        5000,
        whole(20, 600_000),
        "a connection that receives nothing for this long is closed; above `link.pingMs`",
    )
    rpc_in_flight_max: int = key(
        10_000, whole(1, 1_000_000), "calls to one peer that are not answered yet"
    )
    unknown_connections_max: int = key(
        64,
        whole(1, 100_000),
        "strangers' connections that have not proved themselves yet, and as many from the "
        "addresses of members; a stranger's address gets at most half",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The certificate of the HTTP front end; both files (PEM), or none for plain HTTP."""

    cert_file: Path | None = key(
        None,
        PATH,
        "certificate chain of the HTTP port, PEM; with `tls.keyFile`, the port serves https",
    )
    key_file: Path | None = key(
        None, PATH, "private key of that certificate, PEM, without a password"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTlsSettings:
    """The node's certificate on the link, valid for both roles of TLS; all files, or none."""

    cert_file: Path | None = key(
        None, PATH, "this node's certificate on the link, PEM; its DNS names include `raft.selfId`"
    )
    key_file: Path | None = key(
        None, PATH, "private key of that certificate, PEM, without a password"
    )
    # A CA of the cluster's own, since it admits nodes.
    ca_file: Path | None = key(
        None,
        PATH,
        "CA that signs the nodes' certificates, PEM; with the two above, the link uses TLS",
    )
