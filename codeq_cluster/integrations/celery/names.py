"""Names: what Kombu learns of this package as soon as it is imported, so that a URL is enough.

Kombu has no entry point for transports, but loads those for serializers at its import. Ours adds
two names to its table of transports, and a serializer that is JSON under another name.
"""

from __future__ import annotations

from typing import Final

from kombu.transport import TRANSPORT_ALIASES
from kombu.utils import json

_TRANSPORT: Final = "codeq_cluster.integrations.celery.transport:Transport"

TRANSPORT_ALIASES.update(codeq=_TRANSPORT, codeqs=_TRANSPORT)

# Encoder, decoder, content type and encoding, as Kombu registers a serializer.
SERIALIZER: Final = (json.dumps, json.loads, "application/x-codeq-json", "utf-8")
