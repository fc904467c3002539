"""Elections: when this node starts an election, and whether it would vote.

The library's own timer is off. A node starts an election only after a majority granted a pre-vote
round, so neither a pause nor a cut-off node can depose a live leader.
A follower whose connection to the leader is refused does not wait for the timeout.
"""

from __future__ import annotations

from random import Random

from codeq_cluster.raft.members import Voters

# All times are fractions of the election timeout. Safety depends on none of them.
# A starting cluster has no leader. The preferred node goes first, so the others need not compete.
_START_PREFERRED = (0.05, 0.1)
_START_OTHERS = (0.3, 0.6)
# The leader's process is gone, and all followers notice at once. They go one after another, from
# the preferred node on; a step is longer than a round of votes.
_PROMPT_FIRST = (0.0, 0.02)
_PROMPT_STEP = 0.08
_PROMPT_STEPS_MAX = 6
_PROMPT_AGAIN = (0.1, 0.25)
_PROMPT_TRIES = 4
# An election without a winner is retried soon, then less soon.
_AGAIN = ((0.5, 0.8), (0.75, 1.5), (1.0, 2.0))
_SILENCE_PREFERRED = (1.0, 1.2)
_SILENCE_OTHERS = (1.2, 2.0)
_NEVER = float("inf")


class Elections:
    """One node's election timer and the pre-vote round it is in.

    Attributes:
        deadline: When this node asks for pre-votes unless it hears a leader; monotonic seconds.
            Infinite at rest.
    """

    def __init__(self, *, node_id: str, voters: Voters, election_ms: int, random: Random) -> None:
        """Prepare; nothing is armed before `start`.

        Args:
            random: Spreads the deadlines, so that nodes rarely compete.
        """
        self._node_id = node_id
        self._voters = voters
        self._election_s = election_ms / 1000
        self._random = random
        self._heard = float("-inf")
        self._leader: str | None = None
        self._down: set[str] = set()
        self._granted: set[str] = set()
        self._asked_term = 0
        self._tries = 0
        self.deadline = _NEVER

    def start(self, now: float) -> None:
        """Arm the timer of a node that has just started."""
        self._arm(now, self._start)

    def heard(self, leader: str, now: float) -> None:
        """Note a message of the current term's leader."""
        self.rest(leader, now)
        low, high = _SILENCE_OTHERS if self._voters.rank else _SILENCE_PREFERRED
        self.deadline = now + self._election_s * (low + (high - low) * self._random.random())

    def rest(self, leader: str, now: float) -> None:
        """Note that the current term's leader lives; `rouse` follows when its node falls silent."""
        self._leader = leader
        self._heard = now
        self._down.discard(leader)
        self._granted.clear()
        self._asked_term = 0
        self._tries = 0
        self.deadline = _NEVER

    def rouse(self) -> None:
        """Arm the timer from when the leader was last heard, unless it is armed."""
        if self.deadline == _NEVER:
            self._arm(self._heard, self._silence)

    def link_up(self, peer: str, now: float) -> None:
        """Note that the peer can be reached, which does not yet mean that it leads.

        A node that knows no leader and could ask nobody so far brings its next try forward.
        """
        self._down.discard(peer)
        if self._leader is None:
            self.deadline = min(self.deadline, now + self._election_s * self._draw(self._start))

    def link_down(self, peer: str, *, refused: bool, now: float) -> None:
        """Note a broken link.

        Args:
            refused: The connection was refused, so the process is gone.
            now: Monotonic seconds.
        """
        self._down.add(peer)
        if refused and peer == self._leader:
            self.deadline = min(self.deadline, now + self._election_s * self._draw(self._prompt))

    def unseated(self, now: float) -> None:
        """Arm the timer of a node that otherwise lost its leader or its own leadership."""
        self._leader = None
        self._heard = float("-inf")
        self._arm(now, self._silence)

    def leader_alive(self, now: float) -> bool:
        """Return whether the leader was heard lately and its link is still up."""
        return (
            self._leader is not None
            and self._leader not in self._down
            and now - self._heard < self._election_s
        )

    def ask(self, term: int, now: float) -> bool:
        """Open or repeat a pre-vote round for `term`; return whether it is won already."""
        if term != self._asked_term:
            self._asked_term = term
            self._granted = {self._node_id}
        self._arm_again(now)
        self._tries += 1
        return self.won(term)

    def granted(self, voter: str, term: int) -> bool:
        """Count a voter's pre-vote for `term`; return whether a majority has granted it."""
        if term != self._asked_term:
            return False
        self._granted.add(voter)
        return self.won(term)

    def won(self, term: int) -> bool:
        """Return whether a majority would vote for this node in `term`."""
        granted = sum(map(self._voters.votes, self._granted))
        return term == self._asked_term and granted >= self._voters.majority

    def abstain(self, now: float) -> None:
        """Arm the timer of a node that has no vote: it only listens."""
        self._tries += 1
        self._arm_again(now)

    def campaigned(self, now: float) -> None:
        """Close the pre-vote round: the election itself has begun and gets time to be decided."""
        self._asked_term = 0
        self._granted.clear()
        self._arm_again(now)

    @property
    def _start(self) -> tuple[float, float]:
        return _START_OTHERS if self._voters.rank else _START_PREFERRED

    @property
    def _silence(self) -> tuple[float, float]:
        return _SILENCE_OTHERS if self._voters.rank else _SILENCE_PREFERRED

    @property
    def _prompt(self) -> tuple[float, float]:
        wait = _PROMPT_STEP * min(self._voters.rank, _PROMPT_STEPS_MAX)
        return _PROMPT_FIRST[0] + wait, _PROMPT_FIRST[1] + wait

    def _arm_again(self, now: float) -> None:
        if self._leader in self._down and self._tries < _PROMPT_TRIES:
            self._arm(now, _PROMPT_AGAIN)
        else:
            self._arm(now, _AGAIN[min(self._tries, len(_AGAIN) - 1)])

    def _arm(self, now: float, fractions: tuple[float, float]) -> None:
        self.deadline = now + self._election_s * self._draw(fractions)

    def _draw(self, fractions: tuple[float, float]) -> float:
        low, high = fractions
        return low + (high - low) * self._random.random()


class Campaign:
    """The election that this node is about to start, or has started last.

    Attributes:
        wanted: It starts with this turn's tick.
        transferred: The leader asked for it, so voters do not hold it against their live leader.
        votes: (term, voter) counted in it: each voter once.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.transferred = False
        self.votes: set[tuple[int, str]] = set()
