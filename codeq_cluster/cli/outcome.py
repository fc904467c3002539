"""Outcome: how a command ends, as an exit code and, for an error, one line."""

from __future__ import annotations

import errno
import sys
from enum import IntEnum

from codeq_cluster.client import Refused
from codeq_cluster.errors import CodeqError


class Exit(IntEnum):
    """The exit codes of every command; 2 is argparse's own, for a wrong use."""

    OK = 0
    ERROR = 1
    USAGE = 2
    AUTH = 3
    API = 4


def report(error: BaseException) -> Exit | None:
    """Print an operating error as one line; None when the error is none, but a bug."""
    error = _cause(error)
    match error:
        case Refused() if error.status in {401, 403}:
            _say(f"{error} (HTTP {error.status}); pass a token with --token or CODEQ_TOKEN")
            return Exit.AUTH
        case Refused():
            code = f", {error.code}" if error.code else ""
            _say(f"{error} (HTTP {error.status}{code})" if error.status else str(error))
            return Exit.API
        case CodeqError():
            _say(str(error))
            return Exit.ERROR
        case OSError() if error.errno == errno.EADDRINUSE:
            _say(f"a port is taken: {error.strerror or error}")
            return Exit.ERROR
        case OSError():
            _say(str(error))
            return Exit.ERROR
    return None


def _cause(error: BaseException) -> BaseException:
    """Return the one error inside a group that holds nothing else."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _say(text: str) -> None:
    line = " ".join(text.split())
    print(f"codeq-cluster: {line}", file=sys.stderr, flush=True)
