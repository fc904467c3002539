"""Clients: a scenario's commands in the role of clients and operators."""

from __future__ import annotations

from collections import Counter

from .stage import Stage


class Clients(Stage):
    """Proposals, reads, leadership transfers and changes of membership."""

    def _do_propose(
        self, count: str, prefix: str = "v", *, at: str = "", over: str = "0.5", pause: str = "0"
    ) -> str:
        """Propose values to the leader, or to a node that believes it leads, and let time pass."""
        cluster, values = self._cluster, [f"{prefix}{each}".encode() for each in range(int(count))]
        node = cluster.nodes.get(at or cluster.leader() or "")
        if node is None:
            return "nobody leads"
        for value in values:
            if not node.source.propose(value):
                return f"{node.id} does not lead"
            node.group.wake()
            cluster.run(float(pause))
        cluster.run(float(over))
        done = sum(value in cluster.acknowledged for value in values)
        return f"{done} of {count} acknowledged"

    def _do_acknowledged(self, prefix: str = "") -> str:
        """Count the acknowledged values that begin with a prefix."""
        known = self._cluster.acknowledged
        return f"{sum(value.startswith(prefix.encode()) for value in known)} acknowledged"

    def _do_read(self, node_id: str, *, count: str = "1", over: str = "0.01") -> str:
        """Ask a node for a read index, and let time pass."""
        answers = self._reads[node_id] = []
        for _ in range(int(count)):
            self._cluster.nodes[node_id].group.barrier(answers.append)
        self._cluster.run(float(over))
        return self._do_reads(node_id)

    def _do_reads(self, node_id: str) -> str:
        """Print how the node answered its last reads."""
        answers = Counter(self._reads[node_id])
        if not answers:
            return "no answer"
        words = {True: "confirmed", False: "refused"}
        return ", ".join(f"{answers[each]} {words[each]}" for each in words if answers[each])

    def _do_transfer(self, node_id: str, *, to: str | None = None) -> str:
        """Ask a node to hand its leadership over."""
        begun = self._cluster.nodes[node_id].group.transfer(to)
        return "under way" if begun else "refused"

    def _do_add(self, node_id: str) -> None:
        """Start a new node that the members do not know yet."""
        self._cluster.add(node_id)
        self._cluster.start(node_id)

    def _do_expect(self, node_id: str) -> str:
        """Have the leader accept a new node as a learner."""
        return "proposed" if self._cluster.expect(node_id) else "refused"

    def _do_register(self, node_id: str) -> str:
        """Have a node register with the leader under the identity of its data."""
        return "proposed" if self._cluster.knock(node_id) else "refused"

    def _do_join(self, node_id: str) -> str:
        """Let a running node register until it votes."""
        self._until(lambda: self._cluster.is_let_in(node_id) or self._registers(node_id))
        self._until(lambda: node_id in self._cluster.members().voters)
        return self._do_members()

    def _registers(self, node_id: str) -> bool:
        self._cluster.knock(node_id)
        return False

    def _do_remove(self, node_id: str) -> str:
        """Have the leader remove a node."""
        return "proposed" if self._cluster.dismiss(node_id) else "refused"

    def _do_change(self, node_id: str, *, without: str) -> str:
        """Propose the removal of other nodes to a node that believes that it leads."""
        group = self._cluster.nodes[node_id].group
        wanted = group.membership
        for removed in without.split(","):
            wanted = wanted.without(removed)
        try:
            begun = group.change(wanted, lambda _committed: None)
        except ValueError as refusal:
            return f"refused: {refusal}"
        self._cluster.run(0.05)
        return "proposed" if begun else "refused"
