"""Process: the only reader of the environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping


def environment() -> Mapping[str, str]:
    """Return the process's present environment variables."""
    return dict(os.environ)
