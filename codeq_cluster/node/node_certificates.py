"""Node certificates: by which a node proves its identity to clients and to its peers."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from codeq_cluster.broker.background import Background
from codeq_cluster.settings import NodeSettings
from codeq_cluster.wire import Certificates, http_certificates, link_certificates
from codeq_cluster.wire.certificates import LinkContexts


@dataclass(frozen=True, slots=True)
class NodeCertificates:
    """The certificates in use; None where there is no TLS."""

    http: Certificates[ssl.SSLContext] | None
    link: Certificates[LinkContexts] | None

    @property
    def all(self) -> Sequence[Certificates[Any]]:
        """Return those that there are."""
        return [known for known in (self.http, self.link) if known is not None]


def read_certificates(settings: NodeSettings, background: Background) -> NodeCertificates:
    """Return the configured certificates, and follow changes of their files in the background.

    Raises:
        ConfigInvalid: A file cannot be used.
    """
    certificates = NodeCertificates(
        http_certificates(settings.tls),
        link_certificates(settings.link_tls, node_id=settings.node_id),
    )
    for known in certificates.all:
        background.spawn(known.watch())
    return certificates
