"""Relay: creates the tasks of an outbox's rows, in their order, and deletes the rows.

A row's body has the idempotency key that was drawn with it. So a relay that dies between the create
and the delete, or a second one beside it, makes no second task.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from codeq_cluster.client import Client, Refused, SyncClient, Unreachable, may_be_created_later
from codeq_cluster.integrations.outbox.rows import Outbox

BATCH: Final = 100

_POLL_S = 0.2
_PAUSE_S_MAX = 5.0
_DEADLINE_S = 10.0

log = logging.getLogger(__name__)


class Relay:
    """Moves rows to the broker until it is stopped; a context manager runs it in a thread.

    Any number may run at once, in any process. They share rows, so one is enough for speed.

    Attributes:
        created: Tasks so far, those of rows that another relay has sent too included.
        refused: Rows so far that the broker does not take.
        trouble: Why nothing moves now; empty if all is well.
    """

    def __init__(
        self,
        engine: Engine,
        urls: Sequence[str],
        *,
        token: str,
        outbox: Outbox | None = None,
        poll_s: float = _POLL_S,
        deadline_s: float = _DEADLINE_S,
        ca_file: Path | None = None,
    ) -> None:
        """Prepare a relay; nothing is sent yet.

        Args:
            engine: Of the application's database.
            urls: Base URLs of nodes, at least one.
            token: A producer's.
            outbox: The table; None for the default one.
            poll_s: How long to wait before it looks again at an empty table.
            deadline_s: As of `Client`: how long it asks before it says that nothing moves.
            ca_file: As of `Client`.
        """
        self._engine = engine
        self._urls = urls
        self._token = token
        self._outbox = outbox or Outbox()
        self._poll_s = poll_s
        self._deadline_s = deadline_s
        self._ca_file = ca_file
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.run, name="codeq outbox", daemon=True)
        self.created = 0
        self.refused = 0
        self.trouble = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """Stop after the rows that are under way."""
        self._stopping.set()

    def run(self, *, until_empty: bool = False) -> None:
        """Move rows until `stop` is called.

        The database or the broker may be away: rows wait, and it tries again with pauses of up to
        five seconds.

        Args:
            until_empty: Stop as well when no row waits.
        """
        failures = 0
        with SyncClient(self._client()) as client:
            while not self._stopping.is_set():
                pause_s = self._poll_s
                try:
                    found = self._move(client)
                except (Refused, Unreachable, SQLAlchemyError) as error:
                    found, self.trouble = 0, str(error)
                if self.trouble:
                    log.warning("the outbox waits: %s", self.trouble)
                    pause_s = min(_PAUSE_S_MAX, _POLL_S * 2**failures)
                    failures = min(failures + 1, 10)
                else:
                    failures = 0
                    if until_empty and not found:
                        return
                if self.trouble or found < BATCH:
                    self._stopping.wait(pause_s)

    def _client(self) -> Client:
        return Client(
            self._urls, token=self._token, deadline_s=self._deadline_s, ca_file=self._ca_file
        )

    def _move(self, client: SyncClient) -> int:
        """Create the tasks of the oldest rows; return how many rows there were.

        No transaction is open while the broker is asked: another relay may do the same meanwhile.
        """
        with self._engine.connect() as connection:
            rows = self._outbox.first(connection, BATCH)
        if not rows:
            self.trouble = ""
            return 0
        answers = client.create_encoded([body.encode() for _, body in rows])
        created, refusals, waiting = [], [], ""
        for (number, _), (code, error) in zip(rows, answers, strict=True):
            if not error:
                created.append(number)
            elif may_be_created_later(code):
                waiting = error
            else:
                refusals.append((number, f"{code}: {error}"))
        with self._engine.begin() as connection:
            self._outbox.settle(connection, created, refusals)
        self.created += len(created)
        self.refused += len(refusals)
        self.trouble = waiting
        for _, refusal in refusals:
            log.error("the broker refuses a row of the outbox, which stays: %s", refusal)
        return len(rows)
