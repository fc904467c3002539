"""A node that keeps artifacts, and helpers for tests of them."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from codeq_cluster.settings import (
    ArtifactProvider,
    ArtifactSettings,
    LifecycleSettings,
    LimitSettings,
)
from tests.integration.http.client import Answer, Client, eventually, serving, single

# Unneeded artifacts are swept once both times have passed, and tests wait for that. On the other
# hand, no request and no call of the store may take as long, even on a busy machine.
LIMITS = LimitSettings(request_timeout_ms=4000)
TIMEOUT_MS = 4000


@dataclass
class Keeping:
    """A node with artifacts, its client, and a separate view of the stored files.

    Attributes:
        kept: Lists the stored files.
    """

    client: Client
    kept: Callable[[], list[str]]

    async def until_kept(self, expected: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the stored files are as expected; return them."""

        async def found() -> list[str]:
            return self.kept()

        return await eventually(found, expected)

    async def leased(self, **fields: object) -> dict[str, Any]:
        """Create a task and claim it."""
        await self.client.create(**fields)  # type: ignore[arg-type]
        return await self.client.claim()

    async def finish(self, task: dict[str, Any], *artifacts: object, **options: Any) -> Answer:
        """Complete a task with artifacts."""
        body = {"status": "COMPLETED", "result": {}, "artifacts": artifacts}
        return await self.client.post(f"tasks/{task['id']}/result", body, **options)

    async def put(self, task: dict[str, Any], name: str, content: bytes, **options: Any) -> Answer:
        """Upload an artifact."""
        return await self.client.send(
            "PUT", f"tasks/{task['id']}/artifacts/{name}", content, **options
        )


def inline(name: str, content: bytes, **fields: object) -> dict[str, object]:
    """Return an artifact with inline content."""
    return {"name": name, "contentBase64": base64.b64encode(content).decode(), **fields}


def files_below(root: Path) -> Callable[[], list[str]]:
    """Return a function that lists a directory's files."""

    def listed() -> list[str]:
        # A walk skips files that are deleted meanwhile.
        return sorted(
            str(Path(place, name).relative_to(root))
            for place, _, names in os.walk(root)
            for name in names
            if Path(place) != root  # A starting node tests here whether it can write.
        )

    return listed


def local(root: Path, **changes: Any) -> ArtifactSettings:
    """Return the settings of a directory."""
    settings = ArtifactSettings(
        provider=ArtifactProvider.LOCAL, directory=root, timeout_ms=TIMEOUT_MS
    )
    return replace(settings, **changes)


@contextlib.asynccontextmanager
async def keeping(
    data_dir: Path,
    artifacts: ArtifactSettings,
    kept: Callable[[], list[str]],
    *,
    limits: LimitSettings = LIMITS,
    lifecycle: LifecycleSettings | None = None,
) -> AsyncIterator[Keeping]:
    """Run a node that keeps artifacts until the end of the block."""
    settings = replace(
        single(data_dir, limits),
        artifacts=artifacts,
        lifecycle=lifecycle or LifecycleSettings(),
    )
    async with serving(settings) as client:
        yield Keeping(client, kept)
