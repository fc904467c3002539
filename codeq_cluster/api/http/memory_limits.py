"""Memory limits: a common bound on the memory of large request bodies on one node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from codeq_cluster.errors import Overloaded
from codeq_cluster.settings import ArtifactProvider, NodeSettings

# Bodies of the largest size at once; each is in memory several times while it is decoded.
_AT_ONCE = 2


class LargeBodies:
    """Bounds the memory of result bodies that contain artifacts.

    Attributes:
        bytes_max: Bound on one body.
    """

    def __init__(self, settings: NodeSettings) -> None:
        limits = settings.limits
        self._small = limits.max_body_bytes
        self.bytes_max = result_bytes_max(settings)
        self._free = _AT_ONCE * self.bytes_max

    @contextmanager
    def body(self) -> Iterator[Body]:
        """Account for one body until the end of the block."""
        body = Body(self)
        try:
            yield body
        finally:
            self._free += body.taken

    def take(self, size: int) -> None:
        """Take room; `body` gives it back at the end of its block. Raises Overloaded."""
        if size > self._free:
            raise Overloaded("the room for large bodies")
        self._free -= size

    def beyond(self, size: int) -> int:
        """Return the room that a body of this size needs; a small one needs none."""
        return size if size > self._small else 0


class Body:
    """One body, and the room that it has taken, in bytes."""

    def __init__(self, room: LargeBodies) -> None:
        self._room = room
        self.taken = 0

    def grown(self, size: int) -> None:
        """Take the room for a body that has or will have this size; raises Overloaded."""
        more = self._room.beyond(size) - self.taken
        if more > 0:
            self._room.take(more)
            self.taken += more


def result_bytes_max(settings: NodeSettings) -> int:
    """Return the largest size of a result's body, with artifacts where they are configured."""
    limits = settings.limits
    if settings.artifacts.provider is ArtifactProvider.NONE:
        return limits.max_body_bytes
    # Base64 makes four characters of three bytes, and may be broken into lines.
    return limits.max_body_bytes + -(-limits.max_artifact_bytes // 3) * 4 * 19 // 18
