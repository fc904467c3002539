"""The node-to-node link: one authenticated TCP port for every Raft group and the RPC."""

from codeq_cluster.wire.certificates import Certificates, http_certificates, link_certificates
from codeq_cluster.wire.counters import LinkCounters
from codeq_cluster.wire.mesh import Mesh

__all__ = ["Certificates", "LinkCounters", "Mesh", "http_certificates", "link_certificates"]
