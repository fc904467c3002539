"""Values: what results of other frameworks are kept in, by keys of their own (ADR 0052)."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct, field

from codeq_cluster.client import Client, Refused
from codeq_cluster.integrations.bodies import is_readable
from codeq_cluster.integrations.numbered import last_of, read

_READ_AT_ONCE: Final = 20
_KEPT_S: Final = 604_800  # The broker keeps no value and no group longer after its end.
# A group may be forgotten, and then the numbers of its span have a gap, seven days after the
# span's begin. Longer spans would lose later values of a span early; shorter ones cost requests.
_SPAN_S: Final = _KEPT_S // 2
_CLOCKS_S: Final = 3_600  # By which the clocks of two processes may differ.
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


class _Kept(Struct, omit_defaults=True):
    """A payload: a value as JSON that people can read, or as a text; none once it is forgotten.

    Attributes:
        encoding: json, text or base64.
        write: Another one for each write, so that only a repetition is the same.
    """

    value: Raw = Raw(b"")
    encoding: str = "json"
    write: str = field(default_factory=lambda: uuid4().hex)


class Values:
    """A store of values by key, each write of which is a group of one cancelled task.

    A group has a name that its writer chooses, so a key leads to it without an index. The n-th
    write of a key in a span of half a week is the group `KEY.SPAN.n`: what was written is never
    changed, two writers never share a number, and a repeated write makes nothing. Numbers have no
    gaps while their span is written to. Each raises as `Client` does.
    """

    def __init__(
        self, client: Client, *, queue: str, clock: Callable[[], float] = time.time
    ) -> None:
        """Prepare it.

        Args:
            client: Of a producer's token.
            queue: `FRAMEWORK:results`, which holds the values for people to read.
            clock: Unix seconds; those of others may differ by less than an hour.
        """
        self._client = client
        self._queue = queue
        self._clock = clock

    async def get(self, key: str) -> str | bytes | None:
        """Return the last value of a key, or None."""
        _, _, task_id = await self._last(self._name(key), self._spans(back_s=_KEPT_S + _CLOCKS_S))
        task = await read(self._client, task_id)
        return None if task is None else _value(task.payload)

    async def get_all(self, keys: Sequence[str]) -> list[str | bytes | None]:
        """Return the last value of each key, or None."""
        at_once = asyncio.Semaphore(_READ_AT_ONCE)

        async def one(key: str) -> str | bytes | None:
            async with at_once:
                return await self.get(key)

        return await asyncio.gather(*map(one, keys))

    async def set(self, key: str, value: str | bytes, *, ttl_s: int = 0) -> None:
        """Write a value; once it returned, it is on a majority of the nodes.

        Args:
            key: Of any characters.
            value: At most a task's payload.
            ttl_s: When the task of a writer that dies half-way ends; 0 for never.
        """
        await self._set(key, _kept(value), ttl_s)

    async def delete(self, key: str) -> None:
        """Forget a value."""
        await self._set(key, _Kept(), 0)

    async def _set(self, key: str, kept: _Kept, ttl_s: int) -> None:
        name = self._name(key)
        task: dict[str, object] = {"command": self._queue, "payload": kept}
        if ttl_s:
            task["ttlSeconds"] = ttl_s
        spans = self._spans()
        span, number = spans[-1], -1
        if len(spans) > 1:  # By another clock the next span may have begun.
            span, number, _ = await self._last(name, spans)
        while not await self._begun(group := f"{name}.{span}.{number + 1}", task):
            span, number, _ = await self._last(name, spans)
        await self._client.cancel_group(group)

    async def _begun(self, group: str, task: dict[str, object]) -> bool:
        """Begin the group of a write; False if it is another one's."""
        try:
            await self._client.begin_group({"id": group, "tasks": [task], "seal": True})
        except Refused as error:
            if error.code != "idempotency-conflict":
                raise
            return False
        return True

    async def _last(self, name: str, spans: Sequence[int]) -> tuple[int, int, str]:
        """Return the span, the number and the task of the last write.

        Without one, these are the last of the spans, -1 and an empty text.
        """
        for span in spans:
            number, task_id = await last_of(self._client, f"{name}.{span}")
            if number >= 0:
                return span, number, task_id
        return spans[-1], -1, ""

    def _spans(self, *, back_s: int = 0) -> Sequence[int]:
        """Return the spans that others may write to now, or wrote to since; the newest first."""
        now_s = self._clock()
        newest, oldest = (int(at_s) // _SPAN_S for at_s in (now_s + _CLOCKS_S, now_s - back_s))
        return range(newest, oldest - 1, -1)

    def _name(self, key: str) -> str:
        """Return the name of a key's groups; what no group can be named is a hash."""
        if _NAME.fullmatch(key):
            return key
        framework = self._queue.partition(":")[0]
        return f"{framework}-{hashlib.sha256(key.encode()).hexdigest()}"


def _kept(value: str | bytes) -> _Kept:
    if isinstance(value, bytes):
        return _Kept(Raw(msgspec.json.encode(b64encode(value).decode())), "base64")
    encoded = value.encode()
    if is_readable(encoded):
        return _Kept(Raw(encoded))
    return _Kept(Raw(msgspec.json.encode(value)), "text")


def _value(payload: str) -> str | bytes | None:
    kept = msgspec.json.decode(payload, type=_Kept)
    raw = bytes(kept.value)
    if not raw:
        return None
    if kept.encoding == "json":
        return raw.decode()
    text: str = msgspec.json.decode(raw)
    return b64decode(text) if kept.encoding == "base64" else text
