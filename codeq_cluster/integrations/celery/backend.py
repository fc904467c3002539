"""Backend: the results of Celery's tasks, kept by the broker under the tasks' own ids."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec
from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as TimeIsUp
from kombu.exceptions import EncodeError
from kombu.utils.encoding import bytes_to_str
from msgspec import Raw, Struct, field

from codeq_cluster.client import Refused, Unreachable
from codeq_cluster.integrations.link import Link, lasting, may_pass
from codeq_cluster.integrations.target import DEADLINE_S, target_of, without_token

T = TypeVar("T")

# No queue of Kombu's has this name: a colon of theirs is written otherwise.
QUEUE: Final = "celery:results"

_READ_AT_ONCE: Final = 20
_FIRST_LOOK_S: Final = 0.02  # Then twice as long each time, up to the caller's interval.
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_NOT_FOUND: Final = 404
_TOO_LARGE: Final = 413


class _Kept(Struct, omit_defaults=True):
    """A payload: a value as JSON that people can read, or as a text; none once it is forgotten.

    Attributes:
        encoding: json, text or base64.
        write: Another one for each write, so that only a repetition is the same.
    """

    value: Raw = Raw(b"")
    encoding: str = "json"
    write: str = field(default_factory=lambda: uuid4().hex)


class Results(KeyValueStoreBackend):
    """A store of values by key, each write of which is a group of one cancelled task.

    A group has a name that its writer chooses, so a key leads to it without an index. The n-th
    write of a key is the group `KEY.n`: what was written is never changed, two writers never
    share a number, and a repeated write makes nothing.
    """

    key_t = staticmethod(bytes_to_str)
    supports_native_join = True
    supports_autoexpire = True
    persistent = True

    def __init__(self, app: Any, url: str = "", **options: Any) -> None:
        """Prepare it; nothing is sent yet.

        Raises:
            ConfigInvalid: The URL is none of the broker's.
        """
        super().__init__(app, url=url, **options)
        given = app.conf.get("result_backend_transport_options") or {}
        self._target = target_of(
            url,
            token=str(given.get("token", "")),
            deadline_s=float(given.get("deadline_seconds", DEADLINE_S)),
        )

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL, for logs without its token."""
        return self.url if include_password else without_token(self.url)

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {"url": self.url, **(kwargs or {})})

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Return whether Celery's `result_backend_always_retry` may repeat a request."""
        return isinstance(exc, Refused | Unreachable) and may_pass(exc)

    def get(self, key: str) -> Any:
        """Return the last value of a key, or None."""
        return self._run(self._get(key))

    def mget(self, keys: Iterable[str]) -> list[Any]:
        """Return the last value of each key, or None."""
        return self._run(self._get_all(list(keys)))

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value; once it returned, it is on a majority of the nodes.

        Raises:
            EncodeError: It is larger than a task's payload may be; the Celery task then fails.
        """
        try:
            self._run(self._set(key, _kept(value)))
        except Refused as error:
            if error.status == _TOO_LARGE:
                raise EncodeError(f"the result has {len(value)} bytes: {error}") from error
            raise

    def delete(self, key: str) -> None:
        """Forget a value."""
        self._run(self._set(key, _Kept()))

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,  # noqa: ARG002 - Celery's signature
        on_interval: Callable[[], object] | None = None,
    ) -> Any:
        """Return what became of a task, looking often at first.

        Raises:
            celery.exceptions.TimeoutError: It has not ended in time.
        """
        self._ensure_not_eager()
        until_s = None if timeout is None else time.monotonic() + timeout
        nap_s = min(_FIRST_LOOK_S, interval)
        while True:
            meta = self.get_task_meta(task_id)
            if meta["status"] in states.READY_STATES:
                return meta
            if on_interval:
                on_interval()
            left_s = nap_s if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                raise TimeIsUp("The operation timed out.")
            time.sleep(min(nap_s, left_s))
            nap_s = min(2 * nap_s, interval)

    @property
    def _link(self) -> Link:
        return lasting(self._target)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._link.run(call)

    async def _get_all(self, keys: list[str]) -> list[Any]:
        at_once = asyncio.Semaphore(_READ_AT_ONCE)

        async def one(key: str) -> Any:
            async with at_once:
                return await self._get(key)

        return await asyncio.gather(*map(one, keys))

    async def _get(self, key: str) -> Any:
        _, task_id = await self._last(_name(key))
        try:
            task = await self._link.client.task(task_id) if task_id else None
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            task = None  # Its retention is over.
        return None if task is None else _value(task.payload)

    async def _set(self, key: str, kept: _Kept) -> None:
        name = _name(key)
        task: dict[str, object] = {"command": QUEUE, "payload": kept}
        if self.expires:
            # Only for a writer that dies before its cancel.
            task["ttlSeconds"] = max(1, int(self.expires))
        body = {"id": f"{name}.0", "tasks": [task], "seal": True}
        while True:
            try:
                await self._link.client.begin_group(body)
                break
            except Refused as error:
                if error.code != "idempotency-conflict":
                    raise
            body["id"] = f"{name}.{(await self._last(name))[0] + 1}"
        await self._link.client.cancel_group(str(body["id"]))

    async def _last(self, name: str) -> tuple[int, str]:
        """Return the number and the task of the last write, or -1 and an empty text.

        Numbers have no gaps, so a few requests find the last of thousands.
        """
        number, found, step = -1, "", 1
        while (task_id := await self._written(f"{name}.{number + step}")) is not None:
            number, found = number + step, task_id
            step = number + 1
        while step > 1:
            step //= 2
            if (task_id := await self._written(f"{name}.{number + step}")) is not None:
                number, found = number + step, task_id
        return number, found

    async def _written(self, group: str) -> str | None:
        """Return the task of a write, an empty text if it is gone, or None for no such write."""
        try:
            page = await self._link.client.group_results(group)
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            return None
        return page.members[0].task_id if page.members else ""


def _name(key: str) -> str:
    """Return the name of a key's groups; what no group can be named is a hash."""
    if _NAME.fullmatch(key):
        return key
    return f"celery-{hashlib.sha256(key.encode()).hexdigest()}"


def _kept(value: str | bytes) -> _Kept:
    if isinstance(value, bytes):
        return _Kept(Raw(msgspec.json.encode(b64encode(value).decode())), "base64")
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return _Kept(Raw(msgspec.json.encode(value)), "text")
    return _Kept(Raw(value.encode()))


def _value(payload: str) -> str | bytes | None:
    kept = msgspec.json.decode(payload, type=_Kept)
    raw = bytes(kept.value)
    if not raw:
        return None
    if kept.encoding == "json":
        return raw.decode()
    text: str = msgspec.json.decode(raw)
    return b64decode(text) if kept.encoding == "base64" else text
