"""Relay: makes committed rows of an outbox tasks, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from opentelemetry import metrics

from codeq_cluster import __version__
from codeq_cluster.client import NewTask, NotCreated, Refused, SyncClient
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.rows import Row, Rows

BATCH_MAX: Final = 100  # Rows at a time: what one request carries.
PASSED_OVER_MAX: Final = 1000  # By one turn; each turn asks for them again.
POLL_S: Final = 1.0
RETRY_S_MAX: Final = 30.0

# What these rows need becomes free when other tasks end.
_FOR_NOW: Final = frozenset({"too-many", "too-many-merges"})

log = logging.getLogger(__name__)

_METER: Final = metrics.get_meter("codeq_cluster.outbox", __version__)
_POSTED: Final = _METER.create_counter("codeq.outbox.posted", description="rows that became tasks")
_REFUSED: Final = _METER.create_counter("codeq.outbox.refused", description="rows set aside")
_FAILED: Final = _METER.create_counter("codeq.outbox.failures", description="passes to be repeated")


class Relay:
    """Posts rows with their keys, then deletes them; any number of relays may run at once.

    A row that is posted twice, because a relay died or two had it, is one task by its idempotency
    key. As a context manager it runs in a thread of its own.
    """

    def __init__(self, rows: Rows, client: SyncClient, *, poll_s: float = POLL_S) -> None:
        """Start nothing yet.

        Args:
            rows: Of the application's database.
            client: With a producer's token and the codec of JSON; the caller closes it.
            poll_s: How long an empty outbox is left alone.
        """
        self._rows = rows
        self._client = client
        self._poll_s = poll_s
        self._stop = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = Thread(target=self.run, name="codeq outbox", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        _: type[BaseException] | None,
        __: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Let `run` return after the request it is in."""
        self._stop.set()

    def run(self) -> None:
        """Relay until `stop`; while broker or database are away, rows wait."""
        wait_s = retry_s = 0.0
        passing: tuple[type[Exception], ...] = (CodeqError, *self._rows.passing)
        while not self._stop.wait(wait_s):
            try:
                wait_s = 0.0 if self.turn() else self._poll_s
                retry_s = 0.0
            except passing as error:
                _FAILED.add(1)
                wait_s = retry_s = min(RETRY_S_MAX, max(self._poll_s, 2 * retry_s))
                log.warning("outbox waits: %s", error, extra={"retry_s": retry_s})

    def drain(self) -> int:
        """Relay until no row waits, and return how many were settled; errors reach the caller."""
        settled = 0
        while count := self.turn():
            settled += count
        return settled

    def turn(self) -> int:
        """Relay one batch, and return how many rows were settled.

        Rows that one tenant or unique key has too many of for now are passed over.

        Raises:
            CodeqError: The broker took only some of them for now; the others wait.
            Exception: One of `rows.passing`: the database did not answer; the rows wait.
        """
        over: dict[str, Refused] = {}
        while len(over) < PASSED_OVER_MAX:
            rows = self._rows.oldest(count_max=BATCH_MAX, but=tuple(over))
            if not rows:
                break
            if settled := self._relay(rows, over):
                return settled
        for error in over.values():
            raise error
        return 0

    def _relay(self, rows: Sequence[Row], over: dict[str, Refused]) -> int:
        """Relay some rows, and return how many were settled; the others are in `over`."""
        posted: list[str] = []
        refused: dict[str, str] = {}
        try:
            self._post(rows, posted, refused, over)
        finally:
            if posted or refused:
                self._rows.settle(posted=posted, refused=refused)
                _POSTED.add(len(posted))
                _REFUSED.add(len(refused))
        for key, refusal in refused.items():
            log.error("outbox row %s refused: %s", key, refusal)
        return len(posted) + len(refused)

    def _post(
        self,
        rows: Sequence[Row],
        posted: list[str],
        refused: dict[str, str],
        over: dict[str, Refused],
    ) -> None:
        tasks: dict[str, NewTask] = {}
        alone: dict[str, Callable[[], object]] = {}
        for row in rows:
            try:
                if group := row.group:
                    alone[row.key] = partial(self._client.begin_group, group)
                else:
                    tasks[row.key] = row.new_task
            except msgspec.DecodeError as error:
                refused[row.key] = str(error)
        made = dict(zip(tasks, self._created(list(tasks.values())), strict=True))
        posted += [key for key in made if made[key]]
        for key in [key for key in made if not made[key]]:
            # Alone it says whether it can succeed later.
            alone[key] = partial(self._client.create, **_fields(tasks[key]))
        for key, post in alone.items():
            try:
                post()
            except Refused as error:
                if error.code in _FOR_NOW:
                    over[key] = error
                elif _is_final(error):
                    refused[key] = str(error)
                else:
                    raise
            else:
                posted.append(key)

    def _created(self, tasks: list[NewTask]) -> list[bool]:
        """Return for each task whether it is created; of one that is not, ask alone."""
        if not tasks:
            return []
        try:
            outcomes = self._client.create_many(tasks)
        except Refused as error:
            if not _is_final(error):
                raise
            return [False] * len(tasks)
        return [not isinstance(each, NotCreated) for each in outcomes]


def _fields(task: NewTask) -> dict[str, Any]:
    return {each.name: getattr(task, each.name) for each in fields(task)}


def _is_final(error: Refused) -> bool:
    """Return whether the task itself is at fault: a token or a cluster can be mended."""
    unfit = error.status in {400, 409, 413, 422} or error.code == "unknown-dependency"
    return unfit and not error.retryable
