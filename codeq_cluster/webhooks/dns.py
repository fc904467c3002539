"""DNS: look-ups by the system's resolver, in threads of their own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from codeq_cluster.fair_shares import FairShares

# aiohttp asks a resolver for a name and nothing else, so the tenant comes with the context.
_TENANT: ContextVar[str] = ContextVar("tenant")


@contextlib.contextmanager
def looking_up_for(tenant: str) -> Iterator[None]:
    """Charge the block's look-ups to a tenant."""
    token = _TENANT.set(tenant)
    try:
        yield
    finally:
        _TENANT.reset(token)


class DnsResolver:
    """Resolves host names.

    It does not use the event loop's thread pool: users choose the names, and slow ones would occupy
    all its threads. A look-up cannot be cancelled; it keeps its thread until the system's resolver
    returns, so a tenant whose names are slow may run out of threads before it runs out of requests.

    Args:
        threads_max: Bound on concurrent look-ups, a share a tenant; further ones wait.
    """

    def __init__(self, *, threads_max: int) -> None:
        self._threads = FairShares(threads_max, name="the node's look-ups of names")

    async def addresses(self, name: str) -> Sequence[str]:
        """Return the addresses of a name, in the system's order of preference, at least one.

        Raises:
            OSError: The name has none, or cannot be resolved now.
        """
        tenant = _TENANT.get("")
        await self._threads.take_in_time(tenant)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def deliver(found: Sequence[str] | OSError) -> None:
            self._threads.give_back(tenant)
            if answer.done():
                return  # The caller has stopped waiting.
            if isinstance(found, OSError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def look_up() -> None:
            found = _look_up(name)
            with contextlib.suppress(RuntimeError):  # The loop has been closed meanwhile.
                loop.call_soon_threadsafe(deliver, found)

        # A daemon thread, so that a process can end while a name server is silent.
        threading.Thread(target=look_up, name="resolve", daemon=True).start()
        return await answer


def _look_up(name: str) -> Sequence[str] | OSError:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError as error:
        return OSError(f"no name: {error}")
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
