"""Outcome: how a command ends: an exit code and, for an error, one line."""

from __future__ import annotations

import errno
import shutil
import sys
import textwrap
from enum import IntEnum

from codeq_cluster.client import Refused, Unreachable, Untrusted
from codeq_cluster.errors import CodeqError

# The advice for each code of a refusal.
_NEXT = {
    "not-found": "see that the id or name is right and the token is of its tenant",
    "result-not-found": "see codeq-cluster task explain ID, or wait with --wait",
    "already-terminal": "it has ended; see codeq-cluster task result ID",
    "not-transferred": "see codeq-cluster cluster status, and doctor",
    "no-such-node": "name a voter of the shard; see codeq-cluster cluster status",
    "no-leader": "a majority of nodes must run; see codeq-cluster cluster status, or doctor",
    "not-ready": "the node is not ready; see codeq-cluster doctor",
    "outcome-unknown": "see whether it was done before you try again",
    "idempotency-conflict": "use another key for another task",
    "invalid-cursor": "begin without --cursor",
    "unknown-name": "see codeq-cluster queue ls",
    "event-type-not-allowed": "the token's eventTypes do not have it; see codeq-cluster token",
    "no-backup-place": "set backup.directory or backup.s3 on the nodes; see codeq-cluster config",
    "no-such-route": "the node is of an earlier release, or behind another path; see --url",
    "auth-unavailable": "the node cannot fetch its issuer's keys; see codeq-cluster doctor",
    "upgrade-under-way": "see codeq-cluster cluster upgrade --dry-run",
    "level-not-used": "see codeq-cluster cluster upgrade --dry-run",
    "stale-revision": "a later release has put the set; give its --revision, or a later one",
    "backfill-running": "see codeq-cluster schedule get ID",
    "webhooks-not-configured": "create it without --webhook, or set webhookHmacSecret on the nodes",
}
# The role that is allowed, by the broker's text of the refusal.
_ROLES = {
    "Admin only": "admin",
    "Operator only": "operator",
    "The page needs": "viewer",
    "missing scope": "worker",
}


class Exit(IntEnum):
    """The exit codes of every command; 2 is argparse's own, for wrong usage."""

    OK = 0
    ERROR = 1
    USAGE = 2
    AUTH = 3
    API = 4
    # The shell's conventions for a process that a signal ended.
    INTERRUPTED = 130
    NOT_READ = 141
    TERMINATED = 143


class UsageRefused(CodeqError):
    """A command line is wrong in a way argparse does not check; the text says what is allowed."""


def report(error: BaseException) -> Exit | None:
    """Print an operating error as one line; return None for a bug, which is not one."""
    error = _cause(error)
    match error:
        case Refused():
            code, line = _refused(error)
        case Untrusted():
            code, line = Exit.ERROR, f"{error}; name the authority's certificate with --ca"
        case Unreachable():
            code, line = Exit.ERROR, f"{error}; start one with codeq-cluster dev, or name one that "
            line += "runs with --url; codeq-cluster doctor says what is wrong"
        case UsageRefused():
            code, line = Exit.USAGE, str(error)
        case CodeqError():
            code, line = Exit.ERROR, str(error)
        case UnicodeEncodeError():
            code, line = Exit.USAGE, f"an argument, or what it would print, is no text: {error}"
        case OSError() if error.errno == errno.EADDRINUSE:
            code, line = Exit.ERROR, f"a port is taken: {error.strerror or error}; name another"
        case OSError():
            code, line = Exit.ERROR, str(error)
        case _:
            return None
    _say(line)
    return code


def _refused(error: Refused) -> tuple[Exit, str]:
    status = f"HTTP {error.status}" if error.status else ""
    if error.status in (401, 403):
        return Exit.AUTH, f"{error} ({status}); {_who_may(str(error))}"
    # Some refusals have no text but their code.
    code = "" if error.code == str(error) else error.code
    known = ", ".join(each for each in (status, code) if each and error.status)
    line = f"{error} ({known})" if known else str(error)
    todo = _NEXT.get(error.code, "")
    if not todo and error.retryable:
        todo = f"try again in {max(1, error.retry_after_s)} s"
    return Exit.API, f"{line}; {todo}" if todo else line


def _who_may(refusal: str) -> str:
    """Return where a token with the missing role comes from."""
    role = next((role for words, role in _ROLES.items() if words in refusal), "")
    if role:
        return f"pass a token that may with --token, or make one: codeq-cluster token --as {role}"
    return "pass one that is good with --token or CODEQ_TOKEN, or keep it with codeq-cluster init"


def _cause(error: BaseException) -> BaseException:
    """Return the only error inside a group, if there is just one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _say(text: str) -> None:
    print(fitting(f"codeq-cluster: {text}"), file=sys.stderr, flush=True)


def fitting(text: str) -> str:
    """Return a text for standard error: one line, or lines of whole words on a terminal."""
    line = " ".join(text.split())
    if not sys.stderr.isatty():
        return line
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False)
