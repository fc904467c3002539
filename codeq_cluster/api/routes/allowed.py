"""Allowed: the commands that a worker's token permits."""

from __future__ import annotations

from codeq_cluster.api.http.call import COMMAND, Call
from codeq_cluster.api.http.refusals import INVALID_COMMAND, NOT_ALLOWED, too_many

COMMANDS_MAX = 1000  # In one claim; each costs a look at its queue.


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
            raise NOT_ALLOWED
        return commands
    if len(asked) > count_max:
        raise too_many(field, count_max)
    if not everything and not set(asked) <= set(allowed):
        raise NOT_ALLOWED
    if not all(COMMAND.fullmatch(each) for each in asked):
        raise INVALID_COMMAND
    return tuple(dict.fromkeys(asked))
