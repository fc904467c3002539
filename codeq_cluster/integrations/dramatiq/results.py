"""Results: what actors return, kept by the broker under the keys that Dramatiq gives them."""

from __future__ import annotations

from typing import Any, Final

from dramatiq.encoder import Encoder
from dramatiq.results import ResultBackend
from dramatiq.results.backend import Missing
from dramatiq.results.result import wrap_exception

from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.dramatiq.session import as_dramatiq
from codeq_cluster.integrations.link import Link, is_unfit, lasting
from codeq_cluster.integrations.target import DEADLINE_S, target_of
from codeq_cluster.integrations.values import Values

# No queue of Dramatiq's has this name: theirs have no colon.
QUEUE: Final = "dramatiq:results"


class CodeqBackend(ResultBackend):
    """A store of results, for Dramatiq's `Results` middleware."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        deadline_seconds: float = DEADLINE_S,
        namespace: str = "dramatiq-results",
        encoder: Encoder | None = None,
    ) -> None:
        """Prepare it; nothing is sent yet.

        Args:
            url: As a broker's.
            token: In place of the one in the URL.
            deadline_seconds: How long one request is repeated.
            namespace: Applications with different ones do not see each other's results.
            encoder: In place of the global one.

        Raises:
            ConfigInvalid: It is no such URL.
        """
        super().__init__(namespace=namespace, encoder=encoder)
        self._target = target_of(url, token=token, deadline_s=deadline_seconds)

    @property
    def _link(self) -> Link:
        return lasting(self._target)

    @property
    def _values(self) -> Values:
        return Values(self._link.client, queue=QUEUE)

    def _get(self, message_key: str) -> Any:
        try:
            found = self._link.run(self._values.get(_name(message_key)))
        except CodeqError as error:
            raise as_dramatiq(error) from error
        if found is None:
            return Missing
        return self.encoder.decode(found.encode() if isinstance(found, str) else found)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        """Write a result; one that cannot be kept is an exception to those who ask for it."""
        encoded = self.encoder.encode(result)
        try:
            ttl_s = max(1, ttl // 1000)
            self._link.run(self._values.set(_name(message_key), _text(encoded), ttl_s=ttl_s))
        except CodeqError as error:
            if not is_unfit(error):
                raise as_dramatiq(error) from error
            unfit = ValueError(f"the result has {len(encoded)} bytes: {error}")
            self._store(message_key, wrap_exception(unfit), ttl)


def _name(message_key: str) -> str:
    return f"dramatiq-{message_key}"


def _text(encoded: bytes) -> str | bytes:
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded
