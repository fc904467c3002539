"""Image: the environment and directories of the container image, read from its Dockerfile."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_DOCKERFILE = Path(__file__).resolve().parents[2] / "Dockerfile"


def image_variables() -> dict[str, str]:
    """Return the environment that a container starts with."""
    text = _DOCKERFILE.read_text().replace("\\\n", " ")
    lines = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    return dict(pair.split("=", 1) for pair in shlex.split(lines[-1]))


def image_directories() -> set[str]:
    """Return the directories that belong to the image's user."""
    text = _DOCKERFILE.read_text().replace("\\\n", " ")
    (made,) = re.findall(r"install -d -o codeq -g codeq -m 0700 (.*)$", text, re.MULTILINE)
    return set(made.split())
