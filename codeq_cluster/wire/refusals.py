"""Refusals: why a connection was closed, in the words of the counters and the log."""

from __future__ import annotations

from enum import StrEnum


class BadFrame(StrEnum):
    """The fault in received bytes."""

    OVERSIZE = "oversize"
    TRUNCATED = "truncated"
    GARBAGE = "garbage"
    SCHEMA = "schema"
    MAC = "mac"


class HandshakeRefusal(StrEnum):
    """Why two nodes did not become peers.

    - `tls`: the other side speaks no TLS 1.3.
    - `certificate`: it has no certificate that the CA has signed.
    - `name`: its certificate is another node's.
    - `lives`: a node of the same id is connected, on other data.
    - `recovered`: its data is from before the cluster was recovered without it.
    - `shards`: it has another number of shards, and would look for tasks in others.
    """

    VERSION = "version"
    CLUSTER = "cluster"
    SHARDS = "shards"
    MYSELF = "self"
    STRANGER = "stranger"
    MISDIRECTED = "misdirected"
    PROOF = "proof"
    STALE = "stale"
    LIVES = "lives"
    RECOVERED = "recovered"
    TIMEOUT = "timeout"
    CROWDED_OUT = "crowded-out"
    REFUSED_BY_PEER = "refused-by-peer"
    TLS = "tls"
    CERTIFICATE = "certificate"
    NAME = "name"


class FrameRefusedError(Exception):
    """Received bytes are no frame of this link; the connection must be closed.

    Attributes:
        reason: The fault.
    """

    def __init__(self, reason: BadFrame) -> None:
        super().__init__(reason.value)
        self.reason = reason


class HandshakeRefusedError(Exception):
    """The other side is not the node it must be; the connection must be closed.

    Attributes:
        reason: The fault.
        said: The other side's reason, when the other side refused.
        detail: More about it, in this side's words.
    """

    def __init__(self, reason: HandshakeRefusal, *, said: str = "", detail: str = "") -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.said = said
        self.detail = detail
