"""Descriptors: how many of the files that a process may have open are left to connections."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from dataclasses import replace

from codeq_cluster.settings import NodeSettings

log = logging.getLogger(__name__)


def leave_files(settings: NodeSettings) -> NodeSettings:
    """Raise the process's limit as far as it may, and keep half of it for files and the link.

    A store that can open no file is out, and strangers could bring that about by connecting.

    Returns:
        The settings, with a `limits.connectionsMax` of at most half of the limit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # A filter of system calls may forbid it.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = settings.limits
    if most == resource.RLIM_INFINITY or limits.connections_max <= most // 2:
        return settings
    log.warning(
        "fewer connections than limits.connectionsMax: the process may open too few files",
        extra={"connections": most // 2, "files": most, "setting": "limits.connectionsMax"},
    )
    return replace(settings, limits=replace(limits, connections_max=max(1, most // 2)))
