"""Commands: `codeq-cluster` as a shell runs it, in its own process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeq_cluster.config import without_settings
from codeq_cluster.settings import environment

# For a command that must end by itself.
ENDS_WITHIN_S = 120.0

PROGRAM = (sys.executable, "-m", "codeq_cluster.cli.main")


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a command: its exit code, its output, its errors."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The output of `--json`."""
        return json.loads(self.out)


async def command(
    *words: object,
    token: str = "",
    variables: Mapping[str, str] | None = None,
    release: Path | None = None,
    within_s: float = ENDS_WITHIN_S,
) -> Ended:
    """Run a command to its end.

    Args:
        words: The words after `codeq-cluster`.
        token: Bearer token, from the environment; empty for none.
        variables: Added to the environment, which otherwise has no setting of a node.
        release: The directory of the package; None for this one.
        within_s: Longest wait for its end.

    Raises:
        TimeoutError: It did not end in time, and was killed.
    """
    async with commanded(*words, token=token, variables=variables, release=release) as process:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


@asynccontextmanager
async def commanded(
    *words: object,
    token: str = "",
    variables: Mapping[str, str] | None = None,
    release: Path | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command, and kill it at the end of the block if it still runs; see `command`.

    Standard output and error are pipes, to be read by `communicate` or line by line.
    """
    process = await asyncio.create_subprocess_exec(
        *(*PROGRAM, *map(str, words)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=release,
        env=command_environment(token=token, variables=variables, release=release),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def command_environment(
    *,
    token: str = "",
    variables: Mapping[str, str] | None = None,
    release: Path | None = None,
) -> dict[str, str]:
    """Return a command's environment: this process's without settings, plus the variables."""
    kept = without_settings(environment()) | dict(variables or {})
    if token:
        kept["CODEQ_TOKEN"] = token
    if release is not None:
        kept["PYTHONPATH"] = str(release)
    return kept
