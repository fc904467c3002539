"""Relay: the outbox's relay over SQLAlchemy's table."""

from __future__ import annotations

from sqlalchemy import Engine

from codeq_cluster.client import SyncClient
from codeq_cluster.integrations import relay
from codeq_cluster.integrations.outbox.table import TableRows


class Relay(relay.Relay):
    """Makes the committed rows of one database tasks; see `relay.Relay`."""

    def __init__(self, engine: Engine, client: SyncClient, *, poll_s: float = relay.POLL_S) -> None:
        """Start nothing yet.

        Args:
            engine: Of the application's database.
            client: With a producer's token and the codec of JSON; the caller closes it.
            poll_s: How long an empty outbox is left alone.
        """
        super().__init__(TableRows(engine), client, poll_s=poll_s)
