"""Stage: a scenario's cluster, and the commands for its time, network, nodes and disks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

from codeq_cluster.raft.safety_switches import SafetySwitches
from codeq_cluster.raft.status import GroupStatus
from codeq_cluster.settings import RaftSettings
from tests.simulator.cluster import SimCluster
from tests.simulator.network import NetworkFaults
from tests.simulator.scenes import Wiretap, settled

WITHIN_S = 30.0  # How long a command waits, unless it names a bound.
_SETTINGS = {field.name for field in fields(RaftSettings)}


class Stage:
    """One cluster of real groups at a time; every `_do_…` is a command."""

    _cluster: SimCluster
    _wire: Wiretap
    _stopped: dict[str, Callable[[], None]]
    _held: list[tuple[tuple[str, str], list[Mapping[str, object]]]]
    _reads: dict[str, list[bool]]

    def _do_cluster(self, *ids: str, **options: str) -> str:
        """Start a cluster whose first node leads; options are settings, `without` names rules."""
        without = options.pop("without", "")
        unknown = options.keys() - _SETTINGS
        if unknown:
            raise ValueError(f"no setting {sorted(unknown)}")
        self._stopped, self._held, self._reads = {}, [], {}
        self._cluster = settled(
            "".join(ids),
            rules=SafetySwitches(**dict.fromkeys(filter(None, without.split(",")), False)),
            settings=RaftSettings(**{name: int(value) for name, value in options.items()}),
        )
        self._wire = Wiretap(self._cluster)
        return self._do_leader()

    def _do_set(self, **options: str) -> None:
        """Set the duration of a flush, a message, half of a snapshot's transfer, or an outage."""
        cluster = self._cluster
        for name, value in options.items():
            seconds = float(value)
            match name:
                case "flush":
                    cluster.flush_s = lambda seconds=seconds: seconds
                case "delay":
                    cluster.network.faults = NetworkFaults(delays_s=(seconds,))
                case "snapshot":
                    cluster.snapshot_s = lambda seconds=seconds: seconds
                case "outage":
                    cluster.outage_s = lambda seconds=seconds: seconds
                case _:
                    raise ValueError(f"nothing to set is called {name!r}")

    def _do_callers(self, *ids: str) -> None:
        """Let callers wait for commits on these nodes and on no others."""
        for node_id, node in self._cluster.nodes.items():
            node.machine.waits = node_id in ids
        # Followers tell the leader in the answers of the next round.
        self._cluster.run(0.3)

    def _do_advance(self, seconds: str) -> None:
        """Let time pass."""
        self._cluster.run(float(seconds))

    def _do_partition(self, *words: str) -> None:
        """Cut every link between nodes of different groups, which `|` separates."""
        self._cluster.cut(*"".join(words).split("|"))

    def _do_cut(self, sender: str, receiver: str) -> None:
        """Cut one direction of a link."""
        self._cluster.network.cut.add((sender, receiver))

    def _do_heal(self) -> None:
        """Let every link carry again."""
        self._cluster.heal()

    def _do_stall(self, sender: str, receiver: str, seconds: str) -> None:
        """Freeze one direction of a link: messages sent meanwhile arrive in one burst."""
        self._cluster.network.stall((sender, receiver), float(seconds))

    def _do_hold(self, sender: str, receiver: str) -> None:
        """Hold back the messages sent from now on in one direction of a link."""
        wire = (sender, receiver)
        self._held.append((wire, self._cluster.network.hold(wire)))

    def _do_deliver(self) -> None:
        """Deliver the messages held back so far; the links go on holding."""
        for wire, messages in self._held:
            for message in list(messages):
                self._cluster.network.deliver(wire, message)
            messages.clear()

    # Nodes.

    def _do_crash(self, *ids: str, unnoticed: str = "") -> None:
        """Kill nodes; their peers' connections are refused unless `unnoticed=yes`."""
        for node_id in ids:
            self._cluster.crash(node_id, refused=not unnoticed)

    def _do_start(self, *ids: str) -> None:
        """Start nodes that are down."""
        self._cluster.start(*ids)

    def _do_stop(self, node_id: str) -> None:
        """Stop a process as SIGSTOP does: its messages wait in the kernel."""
        receivers, kept = self._cluster.network.receivers, []
        receives = receivers[node_id]
        receivers[node_id] = lambda source, message: kept.append((source, message))

        def go_on() -> None:
            receivers[node_id] = receives
            for source, message in kept:
                receives(source, message)

        self._stopped[node_id] = go_on

    def _do_continue(self, node_id: str) -> None:
        """Let a stopped process run again: it receives everything at once."""
        self._stopped.pop(node_id)()

    def _do_fill_disk(self, node_id: str) -> None:
        """Let a disk refuse writes until the outage ends."""
        self._cluster.disks[node_id].full = True

    def _do_wipe(self, node_id: str) -> None:
        """Restart a node with an empty disk."""
        self._cluster.crash(node_id)
        self._cluster.replace_disk(node_id)
        self._cluster.start(node_id)

    def _do_corrupt(self, node_id: str) -> None:
        """Make a node's state differ from the one that its log produces."""
        self._cluster.nodes[node_id].machine.corrupt()

    def _do_poison(self, node_id: str) -> None:
        """Let a node's state machine raise at the next entry."""
        self._cluster.expect_fatal = True

        def poisoned(index: int, _term: int, _payload: bytes | None) -> None:
            raise ZeroDivisionError(f"entry {index}")

        self._cluster.nodes[node_id].machine._applied = poisoned

    # Shared with other commands.

    def _until(self, condition: Callable[[], bool], seconds: float = WITHIN_S) -> None:
        self._cluster.run_until(condition, seconds=seconds)

    def _status(self, node_id: str) -> GroupStatus:
        return self._cluster.nodes[node_id].group.status()

    def _do_leader(self) -> str:
        """Name the ready leader of the newest term."""
        leader = self._cluster.leader()
        return f"{leader} leads term {self._status(leader).term}" if leader else "nobody leads"

    def _do_members(self) -> str:
        """List the members as the leader has them."""
        members = self._cluster.members().members
        learners = [member.id for member in members if not member.voter]
        said = "voters " + " ".join(sorted(member.id for member in members if member.voter))
        return said + (f", learners {' '.join(learners)}" if learners else "")
