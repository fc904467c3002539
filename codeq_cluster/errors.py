"""Errors: all operating errors; a refusal is a value, and a bug is an assert."""

from __future__ import annotations


class CodeqError(Exception):
    """Base of every operating error of this package."""


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return one error of a group: a CodeqError if there is one, else the first."""
    ours, _ = group.split(CodeqError)
    first: BaseException = ours or group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


class ConfigInvalid(CodeqError):
    """A setting is unknown or out of range; the text names key, value and allowed range."""


class DataDirectoryRefused(CodeqError):
    """The data directory is locked, foreign, damaged or made for another shard count."""


class StorageFailed(CodeqError):
    """The disk refused a read or write; nothing of the batch was written, the node must stop."""


class StorageDamaged(StorageFailed):
    """The disk holds other bytes than were written; the replica must not be served from it."""


class SafetyViolated(CodeqError):
    """An invariant of the replicated log does not hold; the node must stop before it acts on it."""


class NotLeader(CodeqError):
    """The node asked does not lead the shard; nothing was done.

    Attributes:
        hint: Id of the node believed to lead, or None.
    """

    def __init__(self, hint: str | None = None) -> None:
        super().__init__(f"not the leader; leader hint: {hint or 'none'}")
        self.hint = hint


class NoLeader(CodeqError):
    """No leader was found for the shard before the deadline; nothing was done."""


class OutcomeUnknown(CodeqError):
    """The write may or may not take effect; only a later read can tell."""


class Overloaded(CodeqError):
    """A bounded queue is full; nothing was done.

    Attributes:
        retry_after_s: When to try again, whole seconds, at least 1.
    """

    def __init__(self, what: str, *, retry_after_s: int = 1) -> None:
        super().__init__(f"{what} is full")
        self.retry_after_s = retry_after_s


class LimitExceeded(CodeqError):
    """A tenant has reached a limit for now; nothing was done.

    Attributes:
        text: The message; the reference's words where it has them.
        code: Stable.
        retry_after_s: When to try again, whole seconds, at least 1.
    """

    def __init__(
        self,
        *,
        scope: str,
        operation: str,
        retry_after_s: int,
        text: str = "rate limit exceeded",
        code: str = "rate-limited",
    ) -> None:
        super().__init__(f"{text}: {scope}/{operation}")
        self.text = text
        self.code = code
        self.scope = scope
        self.operation = operation
        self.retry_after_s = max(1, retry_after_s)


class TooMany(CodeqError):
    """A tenant has as many of something as it may keep; nothing was done."""

    def __init__(self, what: str, most: int, *, advice: str = "") -> None:
        self.text = f"too many {what} (at most {most}){advice and f': {advice}'}"
        super().__init__(self.text)


class MembershipRefused(CodeqError):
    """A change of the cluster's nodes is unsafe or makes no sense; nothing was done.

    Attributes:
        code: Stable.
        retryable: It may be possible later.
    """

    def __init__(self, text: str, *, code: str, retryable: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.retryable = retryable


class ReleaseTooOld(CodeqError):
    """The cluster uses formats that this release does not know; the node must not serve."""


class MethodUnknown(CodeqError):
    """The peer's release does not know the requested method; nothing was done."""


class UpgradeUnderWay(CodeqError):
    """The cluster's nodes do not all use the formats that this needs; nothing was done."""


class OperationTooLarge(CodeqError):
    """The operation's rows do not fit an entry of the log; nothing was done."""


class ArtifactMissing(CodeqError):
    """The artifact does not exist, or no longer does."""


class ArtifactTooLarge(CodeqError):
    """An artifact has more bytes than the limit; nothing of it is stored."""


class ArtifactStoreFailed(CodeqError):
    """The artifact store refused or did not answer; nothing of an upload is stored."""


class BackupFailed(CodeqError):
    """A backup cannot be written, read or found; no existing backup was changed."""


class BackupDamaged(BackupFailed):
    """A backup holds other bytes than were written to it."""


class LinkLost(CodeqError):
    """The connection to a peer broke before an answer came; the peer may have acted."""


class PeerUnreachable(CodeqError):
    """There is no connection to the peer; nothing was sent."""


class InvalidSchedule(CodeqError):
    """The text that says when a schedule's tasks begin cannot be read, or names no instant.

    Attributes:
        field: `cron`, `every` or `offset`.
        position: Of the character where the part that is wrong begins, from 1.
    """

    def __init__(self, field: str, position: int, text: str) -> None:
        super().__init__(f"{field}, character {position}: {text}")
        self.field = field
        self.position = position


class InvalidZone(CodeqError):
    """There is no time zone of this name; the text has the nearest one."""

    def __init__(self, name: str, *, nearest: str = "") -> None:
        meant = f"did you mean {nearest}?" if nearest else "use a name such as Europe/Berlin"
        super().__init__(f"zone, character 1: {name[:64]!r} is not a time zone; {meant}")
