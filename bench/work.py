"""Work: a lane's requests, encoded once; answers are decoded only as far as needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bench.lanes import Tally, Work
from tests.harness.http import request_bytes

_LEASE_S = 60
_WAIT_S = 5
_TASKS = "/v1/codeq/tasks"
_ID = "{id}"
_RESULT = b'{"status":"COMPLETED","result":{"ok":true}}'


class _Claimed(msgspec.Struct):
    id: str


class _ClaimedBatch(msgspec.Struct):
    tasks: list[_Claimed]


class _Item(msgspec.Struct):
    error: msgspec.Raw | None = None


class _Finished(msgspec.Struct):
    results: list[_Item]


_claimed = msgspec.json.Decoder(_Claimed)
_claimed_batch = msgspec.json.Decoder(_ClaimedBatch)
_finished = msgspec.json.Decoder(_Finished)
_encode = msgspec.json.encode


class BrokerWork:
    """The kinds of work against codeQ's HTTP API.

    Args:
        batch: Tasks per request, of the batch kinds.
        payload_bytes: Of the text in each task's payload.
    """

    def __init__(
        self,
        urls: Sequence[str],
        tally: Tally,
        *,
        producer_token: str,
        worker_token: str,
        command: str,
        batch: int,
        payload_bytes: int,
    ) -> None:
        self._urls = urls
        self._tally = tally
        self._worker_token = worker_token
        self._batch = batch
        task = {"command": command, "payload": {"n": 1, "text": "x" * payload_bytes}}
        claim = {"commands": [command], "leaseSeconds": _LEASE_S, "waitSeconds": _WAIT_S}
        self._create = self._requests("", producer_token, task)
        # A task needs a command, so the server decodes this create and then refuses it.
        self._refused = self._requests("", producer_token, {**task, "command": ""})
        self._claim = self._requests("/claim", worker_token, claim)
        self._create_batch = self._requests("/batch", producer_token, {"tasks": [task] * batch})
        self._claim_batch = self._requests("/claim/batch", worker_token, {**claim, "count": batch})
        # The task's id goes between the two parts: building a header per request would cost too
        # much.
        result = self._requests(f"/{_ID}/result", worker_token, _RESULT)
        self._result = [whole.partition(_ID.encode()) for whole in result]

    def of(self, kind: str) -> Callable[[], Work]:
        """Return the work of a kind.

        Raises:
            KeyError: The kind does not exist.
        """
        return {
            "create": self.create,
            "refused": self.refused,
            "cycle": self.cycle,
            "batch": self.batch,
            "batch-create": self.batch_create,
        }[kind]

    def create(self) -> Work:
        """Create a task."""
        if (yield "create", self._create) is not None:
            self._tally.done(1)

    def refused(self) -> Work:
        """Send a create that is refused."""
        if (yield "refused", self._refused) is not None:
            self._tally.done(1)

    def cycle(self) -> Work:
        """Create a task, claim one, finish it."""
        if (yield "create", self._create) is None:
            return
        raw = yield "claim", self._claim
        if not raw:
            self._tally.empty += raw is not None
            return
        task = _claimed.decode(raw).id.encode()
        results = [before + task + after for before, _, after in self._result]
        if (yield "result", results) is not None:
            self._tally.done(1)

    def batch_create(self) -> Work:
        """Create a batch."""
        if (yield "create-batch", self._create_batch) is not None:
            self._tally.done(self._batch)

    def batch(self) -> Work:
        """Create a batch, claim one, finish it."""
        if (yield "create-batch", self._create_batch) is None:
            return
        raw = yield "claim-batch", self._claim_batch
        held = _claimed_batch.decode(raw).tasks if raw else []
        if not held:
            self._tally.empty += raw is not None
            return
        results = [
            {"taskId": task.id, "status": "COMPLETED", "result": {"ok": True}} for task in held
        ]
        finish = self._requests("/batch/results", self._worker_token, {"results": results})
        raw = yield "result-batch", finish
        if raw is None:
            return
        refused = sum(item.error is not None for item in _finished.decode(raw).results)
        if refused:
            self._tally.fail("result-batch item", refused)
        self._tally.done(len(held) - refused)

    def _requests(self, path: str, token: str, body: object) -> list[bytes]:
        """Return the request for each node, in the order of the URLs."""
        raw = body if isinstance(body, bytes) else _encode(body)
        return [
            request_bytes("POST", url, _TASKS + path, token=token, body=raw) for url in self._urls
        ]
