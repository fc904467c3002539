"""Damage: corruption of files that no process has open."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

_PAGE_BYTES = 4096
_TAIL_BYTES_MAX = 2048
_BITS = 8  # Bits flipped in one file.


class Damage(Struct, frozen=True, kw_only=True):
    """One act of damage.

    Attributes:
        kind: `flip`, `truncate`, `zero` or `gone`.
        of: A pattern of files; one of them is damaged.
        draw: In [0, 1); decides which file, and where.
    """

    kind: str
    of: str
    draw: float


def damage(data: Path, done: Damage) -> bool:
    """Damage or delete one file below a node's data directory; return whether that was done."""
    files = sorted(
        path
        for path in data.rglob(done.of)
        if path.is_file() and path.stat().st_size and path.name not in {"LOCK", "LOG"}
    )
    if not files:
        return False
    spread = done.draw * len(files)
    path = files[int(spread)]
    if done.kind == "gone":
        path.unlink()
        return True
    before = path.read_bytes()
    after = _damaged(before, done.kind, spread % 1)
    path.write_bytes(after)
    return before != after


def _damaged(before: bytes, kind: str, where: float) -> bytes:
    at = int(where * len(before))
    match kind:
        case "truncate":
            return before[: max(0, len(before) - 1 - at % _TAIL_BYTES_MAX)]
        case "zero":
            begin = at - at % _PAGE_BYTES
            page = before[begin : begin + _PAGE_BYTES]
            return before[:begin] + bytes(len(page)) + before[begin + _PAGE_BYTES :]
        case _:
            flipped = bytearray(before)
            for n in range(_BITS):
                spot = (at + n * 7919) % len(flipped)
                flipped[spot] ^= 1 << n
            return bytes(flipped)
