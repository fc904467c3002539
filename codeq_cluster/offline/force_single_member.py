"""Force single member: a cluster of the last node with the data, when the majority is gone.

The other nodes cannot be asked, so data that only they had is lost. All data of this node is kept,
including entries that it does not know to be committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from codeq_cluster.codec.membership import PAST_MAX, Member, Membership
from codeq_cluster.errors import DataDirectoryRefused
from codeq_cluster.raft.journal import Journal
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.buffer import RowBuffer
from codeq_cluster.storage.directory import stopped_directory, wal_of
from codeq_cluster.storage.identity import DirectoryIdentity
from codeq_cluster.storage.opening import bring_up
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from codeq_cluster.storage.shard import write_log_rows
from codeq_cluster.storage.swap import settle
from codeq_cluster.storage.wal import Wal

_LOG_CACHE_BYTES = 2**20


class Survivor:
    """The directory of the stopped node that is to continue alone."""

    def __init__(
        self, identity: DirectoryIdentity, shards: list[tuple[RocksShard, Journal]]
    ) -> None:
        self.identity = identity
        self._shards = shards

    def recover(self) -> None:
        """Make this node the only member of every shard's group, durably.

        Repeating it after a crash in the middle has the same result.

        Raises:
            StorageFailed: The disk refused.
        """
        for store, journal in self._shards:
            membership = journal.memberships.newest[1]
            me = membership.of(self.identity.node_id) or Member(id=self.identity.node_id)
            past = (
                *membership.past,
                *(each.data for each in membership.members if each.data and each is not me),
            )
            alone = Membership(
                members=(
                    Member(
                        id=me.id,
                        data=self.identity.data,
                        link=me.link,
                        http=me.http,
                        level=max(me.level, membership.level),
                    ),
                ),
                level=membership.level,
                # The oldest are the least likely to come back.
                past=tuple(dict.fromkeys(past))[-PAST_MAX:],
            )
            # In a new term: a lost leader's entry at this index must not be taken for this one.
            journal.setCurrentTerm(journal.term + 1, None)
            journal.name_members(alone)
            flush = journal.flush()
            rows = RowBuffer()
            rows.write(flush.puts, flush.delete_ranges)
            write_log_rows(store, rows, mark=store.mark)
            store.sync()
            journal.flushed()


@contextmanager
def survivor(path: Path) -> Iterator[Survivor]:
    """Open the directory of a stopped node, for `recover`.

    Raises:
        DataDirectoryRefused: It is in use, is no data directory, or is damaged.
        StorageFailed: It cannot be read.
    """
    with stopped_directory(path) as identity, ExitStack() as stack:
        settings = StoreSettings()
        cache = new_cache(settings)
        wal = wal_of(path, identity)
        stores = []
        for shard in range(identity.shards):
            directory = path / f"shard-{shard}"
            # An interrupted swap for a snapshot would undo the recovery at the next start.
            settle(directory)
            if not directory.is_dir():
                raise DataDirectoryRefused(f"the data directory {path} has lost {directory.name}")
            store = RocksShard(directory, settings=settings, cache=cache, create=False, wal=wal)
            stack.callback(store.close)
            stores.append(store)
        if wal is not None:
            bring_up(stores, Wal(wal))
        shards = []
        for store in stores:
            journal = Journal(store.log, cache_bytes_max=_LOG_CACHE_BYTES)
            journal.load(applied=store.state.applied_index, bootstrap=identity.bootstrap)
            shards.append((store, journal))
        yield Survivor(identity, shards)
