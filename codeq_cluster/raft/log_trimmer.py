"""Log trimmer: how much of its log a leader keeps."""

from __future__ import annotations

from codeq_cluster.raft.following import Following
from codeq_cluster.raft.replica import Replica

# While a snapshot is on its way, the log after it is kept, up to this multiple of its bounds.
# Without a bound, one slow transfer could fill the disk.
_HELD_LOGS_MAX = 16
_HOLD_S = 60.0


class LogTrimmer:
    """A leader's decision which entries nobody needs any more.

    An entry that the stored state lacks is never trimmed. Within its bounds the log keeps every
    entry that a member lacks; beyond them a member that lacks trimmed entries gets a snapshot.
    """

    def __init__(self, replica: Replica, following: Following) -> None:
        self._context = replica.context
        self._voters = replica.voters
        self._engine = replica.engine
        self._journal = replica.journal
        self._following = following
        self._held_until = float("-inf")

    def hold(self) -> None:
        """Keep more of the log for a minute: a snapshot is on its way to a peer."""
        if self._context.rules.hold_for_snapshots:
            self._held_until = self._context.now() + _HOLD_S

    def trim(self, stored: int) -> None:
        """Trim what every member holds, but for a reserve that slow readers of the log may need.

        A log beyond its bounds is trimmed regardless; a member that lacks the trimmed entries gets
        a snapshot.

        Args:
            stored: The last entry that a restart would find in the state without the log.
        """
        engine, journal, settings = self._engine, self._journal, self._context.settings
        peers = self._voters.peers
        floor = min((engine.match_index(peer) for peer in peers), default=stored)
        entries_max, bytes_max = settings.log_entries_max, settings.log_bytes_max
        if self._context.now() < self._held_until:
            entries_max, bytes_max = entries_max * _HELD_LOGS_MAX, bytes_max * _HELD_LOGS_MAX
        if journal.log_bytes > bytes_max or len(journal) > entries_max:
            # Trimmed down to half the bounds, so that not every entry causes a trim.
            within = journal.first_within(bytes_max // 2, entries_max // 2, upto=stored)
            floor = max(floor, within)
        else:
            floor -= settings.keep_entries
        floor = min(floor, stored)
        journal.trim(floor)
        # Followers may forget what is trimmed here; they learn it with a later message.
        self._following.floor = max(floor, journal.first)
