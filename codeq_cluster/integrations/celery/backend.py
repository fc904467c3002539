"""Backend: the results of Celery's tasks, kept by the broker under the tasks' own ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from celery import current_task, states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as TimeIsUp
from kombu.exceptions import EncodeError
from kombu.utils.encoding import bytes_to_str

from codeq_cluster.client import Refused, Unreachable
from codeq_cluster.integrations.link import Link, is_unfit, lasting, may_pass
from codeq_cluster.integrations.target import DEADLINE_S, target_of, without_token
from codeq_cluster.integrations.values import Values

T = TypeVar("T")

# No queue of Kombu's has this name: a colon of theirs is written otherwise.
QUEUE: Final = "celery:results"

_FIRST_LOOK_S: Final = 0.02  # Then twice as long each time, up to the caller's interval.
_SHOWN_CHARS: Final = 4_000  # Of a failure, and of its traceback, that are too large to be stored.
_AHEAD_MAX: Final = 100  # Values that are read with one that is asked for.
_UNLOCK: Final = "celery.chord_unlock"
_PARTS: Final = "codeq_parts"  # Where the request of such a task has its `_Parts`.


class _Parts:
    """The values of a chord's parts for the task that asks for one after the other.

    It stops at the first part that has not ended. So with each value those after it are read too:
    none with the first, and then twice as many each time.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._places = {key: n for n, key in enumerate(keys)}
        self._read: dict[str, Any] = {}
        self._count = 1

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def value(self, key: str, read: Callable[[Sequence[str]], Sequence[Any]]) -> Any:
        """Return the value of a part's key."""
        if key not in self._read:
            place = self._places[key]
            keys = self._keys[place : place + self._count]
            self._read = dict(zip(keys, read(keys), strict=True))
            self._count = min(2 * self._count, _AHEAD_MAX)
        return self._read.pop(key)


class Results(KeyValueStoreBackend):
    """A store of values by key, in groups of the broker."""

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
        parts = self._parts()
        if parts is not None and key in parts:
            return parts.value(key, self.mget)
        return self._run(self._values.get(key))

    def mget(self, keys: Iterable[str]) -> list[Any]:
        """Return the last value of each key, or None."""
        return self._run(self._values.get_all(list(keys)))

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value; once it returned, it is on a majority of the nodes.

        Raises:
            EncodeError: The broker could never take it, such as a larger one than a payload may
                be; the Celery task then fails with it.
        """
        try:
            # The bound is only for a writer that dies before its cancel.
            ttl_s = max(1, int(self.expires)) if self.expires else 0
            self._run(self._values.set(key, value, ttl_s=ttl_s))
        except Refused as error:
            if is_unfit(error):
                raise EncodeError(f"the result has {len(value)} bytes: {error}") from error
            raise

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: str | None = None,
        request: Any = None,
        **options: Any,
    ) -> Any:
        """Store a state; of a failure that is too large its beginning, so that nobody waits."""
        try:
            return super()._store_result(task_id, result, state, traceback, request, **options)
        except EncodeError as error:
            if state not in states.EXCEPTION_STATES:
                raise
            shown = EncodeError(f"{error}; it begins: {str(result)[:_SHOWN_CHARS]}")
            kept = self.encode_result(shown, state)
            frames = None if traceback is None else str(traceback)[:_SHOWN_CHARS]
            # Without the request, whose arguments `result_extended` stores too.
            return super()._store_result(task_id, kept, state, frames, **options)

    def delete(self, key: str) -> None:
        """Forget a value."""
        self._run(self._values.delete(key))

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

    def _parts(self) -> _Parts | None:
        """Return the parts of the chord that the current task looks at, if it does so."""
        if not current_task or current_task.name != _UNLOCK:
            return None
        request = current_task.request
        found: _Parts | None = getattr(request, _PARTS, None)
        if found is None:
            keys = map(self.get_key_for_task, _ids(request.kwargs["result"]))
            found = _Parts(list(keys))
            setattr(request, _PARTS, found)
        return found

    @property
    def _link(self) -> Link:
        return lasting(self._target)

    @property
    def _values(self) -> Values:
        return Values(self._link.client, queue=QUEUE)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._link.run(call)


def _ids(results: Iterable[Any]) -> Iterator[str]:
    """Return the ids of tasks among results as Celery writes them; a group has others within."""
    for (task_id, _), within in results:
        if within is None:
            yield task_id
        else:
            yield from _ids(within)
