"""Cluster: the settings of consensus, and of the link between nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from codeq_cluster.settings.key import key
from codeq_cluster.settings.kinds import MIB, PATH, member, whole


class Durability(StrEnum):
    """What an acknowledged write survives on a majority of nodes."""

    FSYNC = "fsync"
    OS = "os"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Consensus of one shard."""

    durability: Durability = key(
        "durability",
        Durability.FSYNC,
        member(Durability),
        "what an answered write survives on a majority: `fsync` a power cut, `os` a crash",
    )
    # More saves idle CPU and finds failures later.
    heartbeat_ms: int = key(
        "raft.heartbeatMS", 100, whole(10, 10_000), "between a leader's heartbeats"
    )
    election_ms: int = key(
        "raft.electionMS",
        1000,
        whole(50, 60_000),
        "a follower stands after once to twice this in silence; at least 3 heartbeats",
    )
    fallback_ms: int = key(
        "raft.fallbackMS",
        1500,
        whole(50, 120_000),
        "a leader without a majority for this long steps down; at least 3 heartbeats",
    )
    turn_ms: int = key(
        "raft.turnMS",
        1,
        whole(0, 100),
        "between two turns of one group while operations wait; "
        "longer gathers more in an entry and costs latency",
    )
    append_bytes_max: int = key(
        "raft.appendBytesMax",
        4 * MIB,
        whole(64 * 1024, 256 * MIB),
        "of entries in one append message; below `link.frameBytesMax`",
    )
    entry_bytes_max: int = key(
        "raft.entryBytesMax",
        3 * MIB,
        whole(32 * 1024, 128 * MIB),
        "of one entry; below `raft.appendBytesMax`",
    )
    entries_in_flight_max: int = key(
        "raft.entriesInFlightMax",
        1,
        whole(1, 1024),
        "proposed and not applied, a shard; what is decided meanwhile shares the next entry",
    )
    cache_bytes_max: int = key(
        "raft.cacheBytesMax",
        16 * MIB,
        whole(64 * 1024, 4096 * MIB),
        "of recent log entries in memory, a shard",
    )
    keep_entries: int = key(
        "raft.keepEntries", 10_000, whole(1, 100_000_000), "of the log, behind the slowest peer"
    )
    log_bytes_max: int = key(
        "raft.logBytesMax",
        64 * MIB,
        whole(2**20, 2**36),
        "of a shard's log; a peer that lacks what is forgotten then gets a snapshot",
    )
    # Each entry costs memory, however small.
    log_entries_max: int = key(
        "raft.logEntriesMax", 1_000_000, whole(1000, 10**8), "the same in entries"
    )
    snapshot_bytes_per_s: int = key(
        "raft.snapshotBytesPerSecond",
        32 * MIB,
        whole(2**16, 2**40),
        "pace at which a shard's state is fetched from a peer",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """The node-to-node link."""

    frame_bytes_max: int = key(
        "link.frameBytesMax",
        16 * MIB,
        whole(128 * 1024, 1024 * MIB),
        "of one frame between nodes",
    )
    queue_bytes_max: int = key(
        "link.queueBytesMax", 64 * MIB, whole(MIB, 16_384 * MIB), "waiting to be sent to one peer"
    )
    handshake_timeout_ms: int = key(
        "link.handshakeTimeoutMs",
        3000,
        whole(10, 60_000),
        "a new connection has this long to prove itself",
    )
    dial_timeout_ms: int = key(
        "link.dialTimeoutMs", 1000, whole(10, 60_000), "to open a connection"
    )
    redial_ms: int = key(
        "link.redialMs", 100, whole(1, 60_000), "first pause before a peer is dialled again"
    )
    redial_ms_max: int = key(
        "link.redialMsMax", 1000, whole(1, 600_000), "longest such pause; at least `link.redialMs`"
    )
    ping_ms: int = key(
        "link.pingMs", 1000, whole(10, 60_000), "an idle direction carries a ping after this long"
    )
    silence_ms_max: int = key(
        "link.silenceMsMax",
        5000,
        whole(20, 600_000),
        "a silent connection is given up; above `link.pingMs`",
    )
    rpc_in_flight_max: int = key(
        "link.rpcInFlightMax",
        10_000,
        whole(1, 1_000_000),
        "calls to one peer without an answer yet",
    )
    unknown_connections_max: int = key(
        "link.unknownConnectionsMax",
        64,
        whole(1, 100_000),
        "connections that have not proved themselves",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The certificate of the HTTP front end; both files (PEM), or none for plain HTTP."""

    cert_file: Path | None = key(
        "tls.certFile",
        None,
        PATH,
        "certificate of the HTTP port and its chain, PEM; with `tls.keyFile`, the port is https",
    )
    key_file: Path | None = key("tls.keyFile", None, PATH, "its private key, PEM, no password")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTlsSettings:
    """The node's certificate on the link, valid for both roles of TLS; all files, or none."""

    cert_file: Path | None = key(
        "raft.tls.certFile",
        None,
        PATH,
        "this node's certificate on the link, PEM; its DNS names hold `raft.selfId`",
    )
    key_file: Path | None = key("raft.tls.keyFile", None, PATH, "its private key, PEM, no password")
    # A CA of the cluster's own, since it admits nodes.
    ca_file: Path | None = key(
        "raft.tls.caFile",
        None,
        PATH,
        "who may sign the certificate of a node, PEM; with the two above, the link is TLS",
    )
