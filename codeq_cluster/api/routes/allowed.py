"""Allowed: the commands that a worker's token permits."""

from __future__ import annotations

from codeq_cluster.api.http.call import COMMAND, Call
from codeq_cluster.api.http.errors import ApiError, bad_request

COMMANDS_MAX = 1000  # In one claim; each costs a look at its queue.

_NOT_ALLOWED = ApiError(403, "event type not allowed", "event-type-not-allowed")


def allowed_commands(
    call: Call, asked: list[str] | None, *, field: str = "commands", count_max: int = COMMANDS_MAX
) -> tuple[str, ...]:
    """Return the commands a worker asks for; the token's own when the worker names none.

    Args:
        call: The worker's request.
        asked: The commands, as sent.
        field: Their name in the body.
        count_max: The most that may be named.

    Returns:
        Commands, each once; empty for every command of the tenant.

    Raises:
        ApiError: 403 for a command outside the token; 400 for too many, or for an invalid one.
    """
    allowed = call.identity.event_types
    everything = "*" in allowed
    if not asked or (everything and asked == ["*"]):
        if everything:
            return ()
        # An empty tuple would mean every command, so a token without one usable name gets none.
        commands = tuple(each for each in allowed if COMMAND.fullmatch(each))[:count_max]
        if not commands:
            raise _NOT_ALLOWED
        return commands
    if len(asked) > count_max:
        raise bad_request(f"invalid '{field}' (at most {count_max})", "out-of-range")
    if not everything and not set(asked) <= set(allowed):
        raise _NOT_ALLOWED
    if not all(COMMAND.fullmatch(each) for each in asked):
        raise bad_request("invalid command", "invalid-command")
    return tuple(dict.fromkeys(asked))
