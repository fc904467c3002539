"""Transport: a connection of Kombu to a cluster."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar
from urllib.parse import quote

from kombu.exceptions import ChannelError
from kombu.transport import virtual

import codeq_cluster
from codeq_cluster.client import Refused
from codeq_cluster.errors import CodeqError, ConfigInvalid
from codeq_cluster.integrations.celery.channel import Channel, refused
from codeq_cluster.integrations.link import Link, acquire, may_pass, release
from codeq_cluster.integrations.target import DEADLINE_S, PORT, Target, target_of, without_token

T = TypeVar("T")

_LOOK_S: Final = 1.0  # A signal is seen at once; this only bounds a wait that was not woken.


class BrokerAway(ConnectionError):
    """No node answered, for longer than the client tries; publishing again makes no second task."""


class Transport(virtual.Transport):
    """One connection of Kombu; those of a process to the same cluster share a `Link`."""

    Channel = Channel

    can_parse_url = True
    default_port = PORT
    driver_type = "codeq"
    driver_name = "codeq-cluster"
    # Nothing here polls: a claim waits at the broker.
    polling_interval = None

    connection_errors = (BrokerAway, ConnectionError)
    channel_errors = (ChannelError,)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset({"direct", "topic", "fanout"}), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.polling_interval = None
        self.wake = threading.Event()
        self.link: Any = None

    def driver_version(self) -> str:
        """Return the version of this package."""
        return codeq_cluster.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL, for logs without its token."""
        return uri if include_password else without_token(uri, mask=mask)

    def establish_connection(self) -> Any:
        """Connect: a node must answer, and know the token.

        Raises:
            BrokerAway: No node answers.
            BrokerRefused: The token is not accepted.
        """
        if self.link is None:
            self.link = acquire(target_of_client(self.client))
            try:
                self.ask(self.link.client.raft_status())
            except BaseException:
                self._release()
                raise
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close it; unacknowledged messages return to their queues."""
        try:
            super().close_connection(connection)
        finally:
            self._release()

    def drain_events(self, _: Any, timeout: float | None = None) -> None:
        """Deliver one message.

        Raises:
            TimeoutError: None came in time.
            BrokerRefused: The broker refuses claims.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        while True:
            self.wake.clear()
            try:
                for channel in list(self.channels):
                    if channel.deliver_next():
                        # The next call begins with another channel.
                        if channel in self.channels:
                            self.channels.remove(channel)
                            self.channels.append(channel)
                        return
            except CodeqError as error:
                raise _as_kombu(error) from error
            left_s = _LOOK_S if until_s is None else min(_LOOK_S, until_s - time.monotonic())
            if left_s <= 0:
                raise socket.timeout  # noqa: UP041 - what Kombu's callers name it
            self.wake.wait(left_s)

    def ask(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the answer of a request, with Kombu's errors.

        Raises:
            BrokerAway: No node answered, or the outcome is unknown; repeating it is safe.
            BrokerRefused: The broker refused it.
        """
        link: Link = self.link
        return self.call(lambda: link.run(call))

    def call(self, call: Callable[[], T]) -> T:
        """Return what a call returns that asks the broker, as `ask` does."""
        try:
            return call()
        except CodeqError as error:
            raise _as_kombu(error) from error

    def _release(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            release(link)


def target_of_client(client: Any, *, token: str = "") -> Target:
    """Return the cluster that a connection of Kombu leads to.

    Args:
        client: The connection, which need not be open.
        token: In place of its own.

    Raises:
        ConfigInvalid: It leads to another broker.
    """
    options = client.transport_options
    if len(client.alt) > 1 and any("," in each or "?" in each for each in client.alt):
        shown = "; ".join(map(without_token, client.alt))
        raise ConfigInvalid(
            f"{shown}: several URLs must name one node each, and no option; "
            "write one URL with all nodes: the client itself goes to another one"
        )
    url = client.hostname or client.as_uri()
    if "://" not in url:
        # Kombu hands the first URL over as it is, and takes those that it switches to apart.
        url = f"{client.transport_cls}://{quote(client.password or client.userid or '')}@"
        url += f"[{client.hostname}]" if ":" in client.hostname else client.hostname
        url += f":{client.port}" if client.port else ""
    return target_of(
        url,
        token=token or str(options.get("token", "")),
        ssl=client.ssl,
        deadline_s=float(options.get("deadline_seconds", DEADLINE_S)),
    )


def _as_kombu(error: CodeqError) -> Exception:
    if may_pass(error):
        return BrokerAway(str(error))
    return refused(error) if isinstance(error, Refused) else error
