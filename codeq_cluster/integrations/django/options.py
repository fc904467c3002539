"""Options: what `TASKS` says of a backend, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error

from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.integrations.target import DEADLINE_S, Target, target_of

_KNOWN: Final = ("deadline_seconds", "on_commit", "outbox", "token", "url")
_QUEUE: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:-]{1,128}")


def is_queue(name: str) -> bool:
    """Return whether the broker can have a queue of this name."""
    return _QUEUE.fullmatch(name) is not None


def target_from(options: Mapping[str, Any]) -> Target:
    """Return the cluster that a backend's options lead to.

    Raises:
        ConfigInvalid: They lead to none; the text does not hold the token.
    """
    url = options.get("url")
    if not isinstance(url, str) or not url:
        raise ConfigInvalid("url: missing; write codeq://TOKEN@HOST:PORT,HOST:PORT")
    deadline_s = options.get("deadline_seconds", DEADLINE_S)
    if not isinstance(deadline_s, int | float) or deadline_s < 0:
        raise ConfigInvalid(f"deadline_seconds={deadline_s!r}: must be a number of seconds")
    return target_of(url, token=str(options.get("token") or ""), deadline_s=float(deadline_s))


def faults(alias: str, options: Mapping[str, Any], queues: Iterable[str]) -> Iterator[CheckMessage]:
    """Yield what is wrong with a backend, as Django's system checks show it."""

    def error(number: int, text: str) -> CheckMessage:
        return Error(f"TASKS[{alias!r}]: {text}", id=f"codeq_cluster.E{number:03}")

    try:
        target_from(options)
    except ConfigInvalid as invalid:
        yield error(1, f"OPTIONS: {invalid}")
    for unknown in sorted(options.keys() - set(_KNOWN)):
        yield error(2, f"OPTIONS: {unknown}: unknown; there are {', '.join(_KNOWN)}")
    for queue in sorted(filter(lambda each: not is_queue(each), queues)):
        yield error(3, f"QUEUES: {queue!r}: must be 1 to 128 of A-Za-z0-9._:-")
    for name in "on_commit", "outbox":
        database = options.get(name)
        if database is not None and database not in settings.DATABASES:
            yield error(4, f"OPTIONS: {name}={database!r}: must be an alias in DATABASES, or None")
    if options.get("on_commit") and options.get("outbox"):
        yield error(5, "OPTIONS: on_commit and outbox: a row of the outbox needs no other wait")
    if options.get("outbox") and not apps.is_installed(__package__):
        yield error(6, f"OPTIONS: outbox: its table needs {__package__} in INSTALLED_APPS")
