"""State: brings committed entries into the state, and compares it with the other replicas'.

Two replicas that differ cannot say which of them is wrong. A majority with the same state at an
index can: a replica that differs there must be replaced by a snapshot.
Digests are running hashes. Equal digests at an index mean equal states at every index before it,
and a difference never disappears.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from codeq_cluster.errors import SafetyViolated
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.members import Voters
from codeq_cluster.raft.messages import PAYLOAD
from codeq_cluster.raft.ports import StateMachine
from codeq_cluster.raft.safety_switches import SafetySwitches

_log = logging.getLogger(__name__)

# Bounds on one turn, some milliseconds whatever the rows: a group that catches up must not block
# the loop for others.
_ENTRIES_A_TURN = 64
_BYTES_A_TURN = 2**20
# How many entries behind a peer can still be compared: 2,048 x ~100 bytes.
_KEPT = 2048

# A peer and the identity of its data: a peer whose data was replaced has another state.
_Who = tuple[str, int]


class Applier:
    """One replica's way from the log to the state.

    Entries are applied in order, each once, and only when they are on this node's disk: the state
    must never be ahead of the log after a crash, because the log explains the state. Every applied
    state is compared with the one that a leader reported for the same index.

    Args:
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


class Digests:
    """The digests of this replica's latest states, and one expected digest of a later state.

    Attributes:
        kept: By index, the latest `_KEPT`.
    """

    def __init__(self) -> None:
        self.kept: OrderedDict[int, bytes] = OrderedDict()
        self._expected: tuple[str, int, bytes] | None = None

    def applied(self, index: int, digest: bytes) -> tuple[str, bool] | None:
        """Note the state at `index`, and compare it with the digest expected there.

        Returns:
            The leader that sent the digest and whether it is equal; None when none was expected
            here.
        """
        self.kept[index] = digest
        if len(self.kept) > _KEPT:
            self.kept.popitem(last=False)
        expected = self._expected
        if expected is None or expected[1] > index:
            return None
        self._expected = None
        return None if expected[1] < index else (expected[0], expected[2] == digest)

    def expect(self, peer: str, index: int, digest: bytes) -> None:
        """Compare once this replica reaches `index`; an earlier expectation takes precedence."""
        if self._expected is None:
            self._expected = (peer, index, digest)


class Divergence:
    """The voters' digests, compared with this replica's own state.

    Either side of a difference may be wrong. A leader says which once a majority agrees with it;
    only a majority's agreement with this replica takes its verdict back.

    Attributes:
        differs: The first index at which a voter's state differs, by voter and its data.
        wrong_at: Entry at which this replica's state differs from the majority's; 0 when none is
            known.
    """

    def __init__(self, voters: Voters, *, shard: int) -> None:
        self._voters = voters
        self._shard = shard
        self.wrong_at = 0
        self._same: dict[_Who, int] = {}
        self.differs: dict[_Who, int] = {}

    def compared(self, peer: str, index: int, *, same: bool) -> bool:
        """Note whether a member's state at `index` equals this one; True when that is news."""
        who, news = (peer, self._voters.data.get(peer, 0)), False
        if same:
            if self._same.get(who, 0) < index:
                self._same[who] = index
            # Only a replaced state can be equal again.
            if who in self.differs:
                del self.differs[who]
                self._report("states are equal again", peer, index)
                news = True
            if self.wrong_at and self.confirmed(self.wrong_at):
                # A leader that is wrong itself can go by what it knew of a state since replaced.
                extra = {"shard": self._shard, "index": self.wrong_at}
                _log.warning("a majority has my state", extra=extra)
                self.wrong_at = 0
        elif who not in self.differs:
            # Keep the first index at which states differ; the majority at that index decides.
            self.differs[who] = index
            self._report("states differ", peer, index, level=logging.ERROR)
            news = True
        return news

    def _report(self, text: str, peer: str, index: int, *, level: int = logging.WARNING) -> None:
        _log.log(level, text, extra={"shard": self._shard, "peer": peer, "index": index})

    @property
    def differing(self) -> tuple[str, ...]:
        """Return the voters that are known to differ."""
        return tuple(sorted(peer for peer, _ in filter(self._votes, self.differs)))

    @property
    def open(self) -> bool:
        """Return whether a voter differs and no majority is known to agree with this replica."""
        return bool(self.differs) and any(
            not self.confirmed(index) for who, index in self.differs.items() if self._votes(who)
        )

    @property
    def lost(self) -> bool:
        """Return whether no majority can agree with this replica."""
        voters = self._voters
        return len(voters.voters) - len(self.differing) < voters.majority

    def agrees(self, peer: str, index: int) -> bool:
        """Return whether the member's state is known to equal this one up to `index`."""
        who = (peer, self._voters.data.get(peer, 0))
        return who not in self.differs and self._same.get(who, 0) >= index

    def condemns(self, peer: str) -> bool:
        """Return whether the member's state differs from that of a majority."""
        index = self.differs.get((peer, self._voters.data.get(peer, 0)))
        return index is not None and self.confirmed(index)

    def confirmed(self, index: int) -> bool:
        """Return whether a majority is known to agree with this replica's state at `index`."""
        same = sum(upto >= index for who, upto in self._same.items() if self._votes(who))
        return 1 + same >= self._voters.majority

    def _votes(self, who: _Who) -> bool:
        peer, data = who
        return self._voters.votes(peer) and self._voters.data.get(peer) == data
