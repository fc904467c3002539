"""Keys of a node: where it listens, whom it replicates with, and its store."""

from __future__ import annotations

from codeq_cluster.config.key import key
from codeq_cluster.config.kinds import (
    ADDRESS,
    HOST,
    ID,
    LISTENING,
    PATH,
    SECRET,
    URL,
    choice,
    each,
    member,
    whole,
)
from codeq_cluster.core.sharding import SHARDS_MAX
from codeq_cluster.settings import Durability, LogSync

_MIB = 2**20

NODE = (
    key("port", whole(1, 65535), "HTTP port"),
    key("host", HOST, "address the HTTP port listens on", env="CODEQ_HOST"),
    key("clusterId", ID, "name of the cluster, the same on every node"),
    key(
        "clusterSecret",
        SECRET,
        "shared by the nodes, proves a peer on the link; a must with more than one node",
        secret=True,
    ),
    key(
        "logLevel",
        choice("debug", "info", "warning", "error", aliases={"warn": "warning"}),
        "least severity that is logged",
    ),
    key(
        "accessLog",
        choice("never", "debug", "info"),
        "severity of the line each request leaves in the log",
    ),
    key(
        "metrics.maxCommands",
        whole(1, 100_000),
        "distinct `command` labels; the rest is `other`",
        path="metrics_max_commands",
    ),
    key(
        "persistenceConfig.path",
        PATH,
        "data directory; a must, there is no default",
        env="PERSISTENCE_PATH",
        path="data_dir",
    ),
    key(
        "persistenceConfig.numShards",
        whole(1, SHARDS_MAX),
        "Raft groups; fixed when the data is created",
        env="PERSISTENCE_NUM_SHARDS",
        path="shards",
    ),
    key(
        "durability",
        member(Durability),
        "what an answered write survives on a majority: `fsync` a power cut, `os` a crash",
        path="raft.",
    ),
)

RAFT = (
    key("raft.selfId", ID, "id of this node; a must with `raft.peers`", path="node_id"),
    key(
        "raft.bindAddr",
        LISTENING,
        "where the link listens; without it, this node's address in `raft.peers`",
        path="",
    ),
    key(
        "raft.peers",
        each(ADDRESS),
        "link address of every first node, or of nodes that are there, and of this one; without "
        "it, a cluster of one",
        path="peers",
    ),
    key(
        "raft.peerHTTPAddrs",
        each(URL),
        "base URL of every node; of one without, the peer's link host and this node's `port`",
        path="",
    ),
    key("raft.heartbeatMS", whole(10, 10_000), "between a leader's heartbeats"),
    key(
        "raft.electionMS",
        whole(50, 60_000),
        "a follower stands after once to twice this in silence; at least 3 heartbeats",
    ),
    key(
        "raft.fallbackMS",
        whole(50, 120_000),
        "a leader without a majority for this long steps down; at least 3 heartbeats",
    ),
    key(
        "raft.turnMS",
        whole(0, 100),
        "between two turns of one group while operations wait; "
        "longer gathers more in an entry and costs latency",
    ),
    key(
        "raft.appendBytesMax",
        whole(64 * 1024, 256 * _MIB),
        "of entries in one append message; below `link.frameBytesMax`",
    ),
    key(
        "raft.entryBytesMax",
        whole(32 * 1024, 128 * _MIB),
        "of one entry; below `raft.appendBytesMax`",
    ),
    key(
        "raft.entriesInFlightMax",
        whole(1, 1024),
        "proposed and not applied, a shard; what is decided meanwhile shares the next entry",
    ),
    key(
        "raft.cacheBytesMax",
        whole(64 * 1024, 4096 * _MIB),
        "of recent log entries in memory, a shard",
    ),
    key("raft.keepEntries", whole(1, 100_000_000), "of the log, behind the slowest peer"),
    key(
        "raft.logBytesMax",
        whole(2**20, 2**36),
        "of a shard's log; a peer that lacks what is forgotten then gets a snapshot",
    ),
    key("raft.logEntriesMax", whole(1000, 10**8), "the same in entries"),
    key(
        "raft.snapshotBytesPerSecond",
        whole(2**16, 2**40),
        "pace at which a shard's state is fetched from a peer",
        path="raft.snapshot_bytes_per_s",
    ),
)

TLS = (
    key(
        "tls.certFile",
        PATH,
        "certificate of the HTTP port and its chain, PEM; with `tls.keyFile`, the port is https",
    ),
    key("tls.keyFile", PATH, "its private key, PEM, no password"),
    key(
        "raft.tls.certFile",
        PATH,
        "this node's certificate on the link, PEM; its DNS names hold `raft.selfId`",
        path="link_tls.cert_file",
    ),
    key("raft.tls.keyFile", PATH, "its private key, PEM, no password", path="link_tls.key_file"),
    key(
        "raft.tls.caFile",
        PATH,
        "who may sign the certificate of a node, PEM; with the two above, the link is TLS",
        path="link_tls.ca_file",
    ),
)

LINK = (
    key("link.frameBytesMax", whole(128 * 1024, 1024 * _MIB), "of one frame between nodes"),
    key("link.queueBytesMax", whole(_MIB, 16_384 * _MIB), "waiting to be sent to one peer"),
    key(
        "link.handshakeTimeoutMs",
        whole(10, 60_000),
        "a new connection has this long to prove itself",
    ),
    key("link.dialTimeoutMs", whole(10, 60_000), "to open a connection"),
    key("link.redialMs", whole(1, 60_000), "first pause before a peer is dialled again"),
    key("link.redialMsMax", whole(1, 600_000), "longest such pause; at least `link.redialMs`"),
    key("link.pingMs", whole(10, 60_000), "an idle direction carries a ping after this long"),
    key(
        "link.silenceMsMax",
        whole(20, 600_000),
        "a silent connection is given up; above `link.pingMs`",
    ),
    key("link.rpcInFlightMax", whole(1, 1_000_000), "calls to one peer without an answer yet"),
    key(
        "link.unknownConnectionsMax",
        whole(1, 100_000),
        "connections that have not proved themselves",
    ),
)

STORE = (
    key(
        "store.blockCacheBytes", whole(_MIB, 2**40), "of RocksDB's block cache, all shards together"
    ),
    key("store.memtableBytes", whole(_MIB, 4096 * _MIB), "of one memtable"),
    key("store.bloomBits", whole(1, 32), "of a key in the bloom filters"),
    key(
        "store.unspilledBytes",
        whole(_MIB, 2**40),
        "of a shard's rows in memory while its database stalls; with more the shard waits",
    ),
    key(
        "store.minFreeBytes",
        whole(0, 2**40),
        "free on the disk; a node with less steps back; 0 waits until a write fails",
    ),
    key(
        "store.sync",
        member(LogSync),
        "who waits for the disk; `kernel` costs less where cores are idle, `thread` is faster "
        "where they are busy, `auto` goes by how long syncs take",
    ),
)
