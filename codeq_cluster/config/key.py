"""Key: one setting, with its names in a file and in the environment, and its place."""

from __future__ import annotations

import re
from dataclasses import dataclass

from codeq_cluster.config.kinds import ValueKind

# Before the last capital of `HTTPAddrs`, before the first of `selfId`.
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One setting.

    Attributes:
        name: In a file, dots between levels.
        env: The variable. For a secret, the same with `_FILE` names the file that holds it.
        meaning: One phrase, for the documentation.
        path: Its place in `NodeSettings`, or empty if `load` sets it by hand.
        secret: Never printed, even if it is wrong.
    """

    name: str
    env: str
    kind: ValueKind
    meaning: str
    path: str = ""
    secret: bool = False


def key(
    name: str,
    kind: ValueKind,
    meaning: str,
    *,
    env: str | None = None,
    path: str | None = None,
    secret: bool = False,
) -> SettingKey:
    """Return a key whose variable and place follow from its name, unless they are given.

    `artifacts.s3.bucket` is the variable `ARTIFACTS_S3_BUCKET` and the setting
    `artifacts.s3_bucket`.

    Args:
        name: As in a file.
        kind: The values it may have.
        meaning: One phrase, for the documentation.
        env: The variable.
        path: The place in `NodeSettings`; with a dot at its end, the section that has the field.
        secret: Never printed.
    """
    section, dot, field = _snake(name).partition(".")
    if path is None:
        path = f"{section}{dot}{field.replace('.', '_')}"
    elif path.endswith("."):
        path += section
    return SettingKey(name, variable_of(name) if env is None else env, kind, meaning, path, secret)


def variable_of(name: str) -> str:
    """Return the variable of a key: `raft.peerHTTPAddrs` is `RAFT_PEER_HTTP_ADDRS`."""
    return _snake(name).replace(".", "_").upper()


def _snake(name: str) -> str:
    return _WORD.sub("_", name).lower()
