"""Following: what a replica remembers of its leaders' messages."""

from __future__ import annotations

from codeq_cluster.raft.messages import Append


class Following:
    """The notes of one replica about the leaders that it has heard.

    Attributes:
        answering: The message that is being handled; None between messages.
        floor: The log may be trimmed up to here.
        commit: The highest commit index that a leader has reported.
        behind: The leader has said since the last turn that it lacks the entries this replica
            needs.
    """

    def __init__(self) -> None:
        self.answering: Append | None = None
        self.floor = 0
        self.commit = 0
        self.behind = False
