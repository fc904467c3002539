"""Applier: brings committed entries into the state."""

from __future__ import annotations

from codeq_cluster.errors import SafetyViolated
from codeq_cluster.raft.divergence import Divergence
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.messages import PAYLOAD
from codeq_cluster.raft.ports import StateMachine
from codeq_cluster.raft.safety_switches import SafetySwitches
from codeq_cluster.raft.state_digests import Digests

# Bounds on one turn, about 20 ms: a group that catches up must not block the loop for others.
_ENTRIES_A_TURN = 256
_BYTES_A_TURN = 4 * 2**20


class Applier:
    """One replica's way from the log to the state.

    Entries are applied in order, each once, and only when they are on this node's disk: the state
    must never be ahead of the log after a crash, because the log explains the state. Every applied
    state is compared with the one that a leader reported for the same index.

    Args:
        shard: Number of the shard, for errors.
        journal: The log.
        machine: The state.
        digests: This replica's latest states.
        divergence: Hears of every comparison.
        rules: Production has them all.

    Attributes:
        index: Of the last entry in the state.
        digest: Of the state with that entry. The machine's own may be of another entry while its
            store is reopened.
    """

    def __init__(
        self,
        *,
        shard: int,
        journal: Journal,
        machine: StateMachine,
        digests: Digests,
        divergence: Divergence,
        rules: SafetySwitches,
    ) -> None:
        self._shard = shard
        self._journal = journal
        self._machine = machine
        self._digests = digests
        self._divergence = divergence
        self._flushed_only = rules.apply_flushed_only
        self.index = machine.applied_index
        self.digest = machine.digest
        digests.applied(self.index, self.digest)

    def apply(self, commit: int) -> int:
        """Apply a bounded number of entries up to `commit`; return the applied index.

        Raises:
            SafetyViolated: The state is not where its entries are.
        """
        machine, journal = self._machine, self._journal
        upto = min(commit, journal.flushed_last) if self._flushed_only else commit
        entries = journal.read(
            self.index + 1,
            count=min(upto - self.index, _ENTRIES_A_TURN),
            bytes_max=_BYTES_A_TURN,
        )
        for command, index, term in entries:
            if index != self.index + 1 or machine.applied_index != self.index:
                raise SafetyViolated(
                    f"shard {self._shard}: entry {index} after {self.index}, "
                    f"the state is at {machine.applied_index}"
                )
            machine.apply(index, term, command[1:] if command[:1] == PAYLOAD else None)
            if machine.applied_index != index:
                raise SafetyViolated(f"shard {self._shard}: the state did not take entry {index}")
            self.index = index
            self.digest = machine.digest
            compared = self._digests.applied(index, self.digest)
            if compared is not None:
                peer, same = compared
                self._divergence.compared(peer, index, same=same)
        return self.index
