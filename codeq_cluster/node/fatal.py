"""Fatal: the end of a process that must not go on."""

from __future__ import annotations

import logging
import os

from codeq_cluster.errors import ReleaseTooOld, SafetyViolated, StorageFailed

log = logging.getLogger(__name__)

EXIT_REFUSED = 1  # Same as for a refusal at the start.
EXIT_UNSAFE = 70  # The process ends at once: an invariant does not hold.


def stop_at_once(shard: int, error: BaseException) -> None:
    """End the process: continuing could lose, change or misread acknowledged data."""
    if isinstance(error, ReleaseTooOld):
        log.critical("stopping at once: %s", error, extra={"shard": shard})
        logging.shutdown()
        os._exit(EXIT_REFUSED)
    reason = "storage failed" if isinstance(error, StorageFailed) else "an invariant does not hold"
    if isinstance(error, SafetyViolated):
        reason = "the replicated log is not safe to use"
    log.critical(
        "stopping at once: %s", reason, exc_info=error, extra={"shard": shard, "error": str(error)}
    )
    logging.shutdown()
    os._exit(EXIT_UNSAFE)
