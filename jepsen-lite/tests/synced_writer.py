"""A program that writes lines to a segment of a write-ahead log and syncs them as a node does.

Arguments: the directory of the segment, and the value of `store.sync`. Each input line is written
    and synced. The output is the error number of the sync, 0 for none, and the number of turns of
    the event loop meanwhile. A line that begins with `+` is written without a sync; an empty one
    only syncs.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from codeq_cluster.raft.io_adapters import DiskThread
from codeq_cluster.settings import LogSync
from codeq_cluster.storage.segment_files import OpenSegment, SegmentFiles
from codeq_cluster.storage.syncers import syncer_of

HEAD = b"head\n"
_STOP_S = 60.0


async def _main(path: Path, sync: LogSync) -> None:
    loop = asyncio.get_running_loop()
    disk = DiskThread(loop)
    syncer = syncer_of(sync, disk, loop, loop.time)
    file, _ = SegmentFiles(path).create("segment-1", HEAD, len(HEAD))
    offset = len(HEAD)
    for line in map(str.rstrip, sys.stdin):
        if line:
            offset += _write(file, offset, line.removeprefix("+"))
        if line.startswith("+"):
            print("written", flush=True)
            continue
        told: asyncio.Future[BaseException | None] = loop.create_future()
        syncer.sync(file, told.set_result)
        turns = 0
        while not told.done():
            turns += 1
            await asyncio.sleep(0.001)
        error = told.result()
        assert error is None or isinstance(error, OSError)
        print(error.errno if error is not None else 0, turns, flush=True)
    assert sync is not LogSync.KERNEL or syncer.by_kernel, "the kernel takes syncs"
    assert syncer.stop(_STOP_S)
    assert disk.stop(_STOP_S)


def _write(file: OpenSegment, offset: int, line: str) -> int:
    content = line.encode() + b"\n"
    file.write(offset, content)
    return len(content)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), LogSync(sys.argv[2])))
