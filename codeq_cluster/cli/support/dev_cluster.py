"""Dev cluster: the address and token of a development cluster in this directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from codeq_cluster.errors import CodeqError

DIRECTORY = Path(".data/dev")
STATE = "cluster.json"
TOKEN = "dev-token"  # noqa: S105 - printed for everyone to use, on a loopback address only


def published(directory: Path) -> tuple[Mapping[str, object], ...]:
    """Return the nodes of a running cluster from cluster.json, or none.

    Raises:
        CodeqError: The file exists and cannot be read.
    """
    file = directory / STATE
    try:
        rows = json.loads(file.read_bytes())["nodes"]
        assert isinstance(rows, list)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise CodeqError(f"{file} cannot be read: {error!r}") from error
    return tuple(rows)
