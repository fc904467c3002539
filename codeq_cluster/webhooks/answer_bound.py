"""Answer bound: how much a target may send in answer to one request."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

# Beyond all heads that servers send. Of interim answers it is 900, 10 us each.
ANSWER_BYTES_MAX = 16 * 2**10


class AnswerTooLong(aiohttp.ClientError):
    """The target sent as much as it may, and no final status."""

    def __init__(self) -> None:
        super().__init__(f"the first {ANSWER_BYTES_MAX // 2**10} KiB hold no final status")


class BoundedConnector(aiohttp.TCPConnector):
    """Makes connections that end when the answer to a request is too long.

    The bytes are counted before they are parsed. All that arrives at once is parsed in one step of
    the loop, and aiohttp bounds neither interim answers (103) nor the number of chunks: a target
    that sends them for ever would stop the node. The part within the bound counts as an answer.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        handler: type[ResponseHandler] = _BoundedAnswers
        self._factory = partial(handler, loop=asyncio.get_running_loop())


class _BoundedAnswers(ResponseHandler):
    _left = ANSWER_BYTES_MAX

    def set_response_params(self, **params: Any) -> None:
        """Expect the answer to another request."""
        self._left = ANSWER_BYTES_MAX
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Parse the part of an answer that is within the bound; at its end, end the connection."""
        left = self._left
        self._left = max(0, left - len(data))
        super().data_received(data[:left])
        if len(data) > left and self.transport is not None:
            if not self.is_eof():
                self.set_exception(AnswerTooLong())
            self.transport.abort()
