"""DNS: look-ups by the system's resolver, in threads of their own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence


class DnsResolver:
    """Resolves host names.

    It does not use the event loop's thread pool: users choose the names, and slow ones would occupy
    all its threads. A look-up cannot be cancelled; it keeps its thread until the system's resolver
    returns.

    Args:
        threads_max: Bound on concurrent look-ups; further ones wait.
    """

    def __init__(self, *, threads_max: int) -> None:
        self._places = asyncio.Semaphore(threads_max)

    async def addresses(self, name: str) -> Sequence[str]:
        """Return the addresses of a name, in the system's order of preference, at least one.

        Raises:
            OSError: The name has none, or cannot be resolved now.
        """
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def deliver(found: Sequence[str] | OSError) -> None:
            self._places.release()
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
