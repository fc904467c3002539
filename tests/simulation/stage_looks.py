"""Looks: a scenario's commands that wait for a condition or print a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from .stage import WITHIN_S, Stage

_KINDS = {
    1: "append",
    2: "answer",
    3: "vote request",
    4: "vote",
    5: "pre-vote request",
    6: "pre-vote",
    7: "timeout-now",
    8: "term hint",
    9: "behind",
    10: "diverged",
}


class Looks(Stage):
    """The nodes' states, views and messages; every `_is_…` is a condition to wait for."""

    def _do_elect(self, *ids: str, within: str = str(WITHIN_S)) -> str:
        """Let time pass until one of these nodes leads, or any."""
        allowed = ids or self._cluster.ids
        self._until(lambda: self._cluster.leader() in allowed, float(within))
        return self._do_leader()

    def _do_wait(self, what: str, *ids: str, within: str = str(WITHIN_S)) -> None:
        """Let time pass until a condition holds for each of these nodes."""
        holds = getattr(self, "_is_" + what.replace("-", "_"))
        self._until(lambda: all(map(holds, ids or self._cluster.ids)), float(within))

    def _is_caught_up(self, node_id: str) -> bool:
        leader = self._cluster.leader()
        return leader is not None and self._cluster.values(node_id) == self._cluster.values(leader)

    def _is_fetching(self, node_id: str) -> bool:
        return self._cluster.nodes[node_id].reseeding

    def _is_sound(self, node_id: str) -> bool:
        return not self._cluster.nodes[node_id].machine.corrupted

    def _is_voter(self, node_id: str) -> bool:
        return node_id in self._cluster.members().voters

    def _is_writing(self, node_id: str) -> bool:
        log = self._cluster.nodes[node_id].group._replica.journal
        return log.last > log.flushed_last

    def _is_following(self, node_id: str) -> bool:
        return not self._status(node_id).is_leader

    def _is_in_doubt(self, node_id: str) -> bool:
        return bool(self._status(node_id).in_doubt)

    def _do_status(self, *ids: str) -> str:
        """Print each node's role, and the last indexes of its log and its state."""
        return "\n".join(map(self._state_of, ids or sorted(self._cluster.ids)))

    def _state_of(self, node_id: str) -> str:
        node = self._cluster.nodes.get(node_id)
        if node is None:
            return f"{node_id}: down"
        if node.fatal is not None:
            return f"{node_id}: stopped: {node.fatal!r}"
        status = node.group.status()
        part = "leads" if status.is_leader else f"follows {status.leader or 'nobody'}"
        if not node.group.running:
            part += ", is out"
        return (
            f"{node_id}: {part}, term {status.term}, log to {status.log_last}, "
            f"committed {status.commit_index}, applied {status.applied_index}"
        )

    def _do_sources(self, *ids: str) -> str:
        """Print the events that the groups have reported to their sources of entries."""
        said = []
        for node_id in ids or sorted(self._cluster.nodes):
            source = self._cluster.nodes[node_id].source
            part = f"follows {source.leader or 'nobody'}"
            said.append(f"{node_id} {part if source.term is None else f'leads term {source.term}'}")
        return ", ".join(said)

    def _do_values(self, *ids: str) -> str:
        """List what each node's state holds."""
        return "\n".join(
            f"{node_id}: {' '.join(_spans(self._cluster.values(node_id))) or 'nothing'}"
            for node_id in ids or sorted(self._cluster.nodes)
        )

    def _do_log(self, *ids: str) -> str:
        """Print the entries of each node's log."""
        logs = {each: self._status(each) for each in ids or sorted(self._cluster.nodes)}
        return "\n".join(f"{each}: {log.log_first} to {log.log_last}" for each, log in logs.items())

    def _do_named(self, node_id: str) -> str:
        """List the members as one node's log has them, committed or not."""
        members = self._cluster.nodes[node_id].group.membership.members
        return " ".join(sorted(member.id for member in members))

    def _do_counters(self, node_id: str, *names: str) -> str:
        """Print how often each of these events happened."""
        counters = self._status(node_id).counters
        return ", ".join(f"{name} {counters.get(name, 0)}" for name in names)

    def _do_doubts(self) -> str:
        """Print the nodes that cannot tell whether their state or another voter's is right."""
        return " ".join(filter(self._is_in_doubt, sorted(self._cluster.nodes))) or "nobody"

    def _do_offers_snapshots(self) -> str:
        """Print the nodes that would serve a snapshot."""
        nodes = [node.id for node in self._cluster.nodes.values() if node.group.serves_snapshots]
        return " ".join(nodes) or "nobody"

    def _do_snapshots(self) -> str:
        """Count the snapshots installed so far."""
        return f"{self._cluster.snapshots} installed"

    def _do_tap(self) -> None:
        """Count messages from here on."""
        self._wire.sent.clear()

    def _do_sent(self, sender: str, receiver: str) -> str:
        """Count the messages sent in one direction of a link, by kind."""
        sent = [m for s, r, m in self._wire.sent if (s, r) == (sender, receiver)]
        kinds = Counter(_KINDS[int(str(message["t"]))] for message in sent)
        entries = sum(len(terms) for m in sent if isinstance(terms := m.get("et"), list))
        said = [f"{kind} {count}" for kind, count in sorted(kinds.items())]
        return ", ".join([*said, f"entries {entries}"] if entries else said) or "nothing"

    def _do_check(self) -> str:
        """Check that all voters have the same values, and that nothing acknowledged is lost."""
        self._cluster.check()
        self._cluster.check_converged()
        voters = self._cluster.members().voters
        values = len(self._cluster.values(voters[0]))
        known = len(self._cluster.acknowledged)
        return f"{len(voters)} voters agree on {values} values, {known} of them acknowledged"


def _spans(values: Sequence[bytes]) -> Iterator[str]:
    """Shorten runs of values: five become `v0..v4`."""
    for prefix, run in groupby(values, lambda value: value.rstrip(b"0123456789")):
        first, *rest = run
        yield f"{first.decode()}..{rest[-1].decode()}" if rest else first.decode()
        assert prefix in first
