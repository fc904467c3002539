"""Supervisor: the nodes as child processes, from their start to a clean stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from codeq_cluster.cli.local.dev.directory import publish, retract
from codeq_cluster.cli.local.dev.plan import PlannedNode
from codeq_cluster.cli.local.dev.port_holder import Holder, holder_of
from codeq_cluster.cli.local.dev.readiness import all_ready
from codeq_cluster.config import without_settings
from codeq_cluster.errors import CodeqError
from codeq_cluster.settings import environment

# A node stops in a few seconds; one that needs longer hangs.
_STOP_TIMEOUT_S = 20.0

# After this many quick deaths in a row, another restart will not help.
_HASTY_S = 10.0
_HASTY_DEATHS_MAX = 5
_RESTART_PAUSE_S = 0.2
_RESTART_PAUSE_S_MAX = 3.0
_LOOK_S = 0.1  # For the end of a process that is no child.

_LAST_LINE_BYTES = 4096


class Supervisor:
    """Runs the nodes and reports events about them, one per line."""

    def __init__(
        self,
        nodes: Sequence[PlannedNode],
        directory: Path,
        *,
        restart: bool,
        say: Callable[[str], None],
    ) -> None:
        self._nodes = tuple(nodes)
        self._directory = directory
        self._restart = restart
        self._say = say
        self._running: dict[str, Process] = {}
        self._ready = False

    async def run(self, ready_text: str) -> None:
        """Run until cancelled; every node has ended on return.

        Args:
            ready_text: Printed once, when every node is ready.

        Raises:
            CodeqError: A node died before all were ready, they were not ready in time, or no node
                is left.
        """
        try:
            for node in self._nodes:
                await self._start(node)
            self._publish()
            async with asyncio.TaskGroup() as group:
                for node in self._nodes:
                    group.create_task(self._watch(node))
                await all_ready(self._nodes)
                self._ready = True
                self._say(ready_text)
        finally:
            await self._stop()
            retract(self._directory)

    async def _start(self, node: PlannedNode) -> None:
        command = ("-m", "codeq_cluster.cli.main", "node", "--config", str(node.config_file))
        log = os.open(node.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # The node gets its own session: Ctrl-C in the terminal reaches only this process, which
            # then stops the nodes in order. The pipe closes when this process is gone for any
            # reason, and then the node stops.
            self._running[node.id] = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                "--until-stdin-closes",
                stdin=PIPE,
                stdout=log,
                stderr=log,
                # A PORT or RAFT_PEERS meant for another program must not reconfigure one node.
                env=without_settings(environment()),
                start_new_session=True,
            )
        finally:
            os.close(log)

    async def _watch(self, node: PlannedNode) -> None:
        """Report the node's death, and restart it if it should run.

        Raises:
            CodeqError: The node died before the cluster was ready, or no node is left.
        """
        hasty = 0
        while True:
            began = time.monotonic()
            code = await self._running[node.id].wait()
            del self._running[node.id]
            death = f"node {node.id} {_ended(code)}"
            if not self._ready:
                raise CodeqError(f"{death}: {_last_line(node.log_file)}")
            self._publish()
            hasty = hasty + 1 if time.monotonic() - began < _HASTY_S else 0
            if not self._restart or hasty > _HASTY_DEATHS_MAX:
                again = f"{_program()} node --config {node.config_file}"
                self._say(f"{death}; the others go on; start it again with: {again}")
                break
            self._say(f"{death}; starting it again")
            await asyncio.sleep(min(_RESTART_PAUSE_S * 2**hasty, _RESTART_PAUSE_S_MAX))
            await self._start(node)
            self._publish()
        if not self._running and not self._restart:
            raise CodeqError("no node is left")

    def _publish(self) -> None:
        pids = {node_id: process.pid for node_id, process in self._running.items()}
        publish(self._directory, [(node, pids.get(node.id)) for node in self._nodes])

    async def _stop(self) -> None:
        """Ask every node to stop, and kill those that still run after a bound."""
        left = dict(self._running)
        for process in left.values():
            _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                for node_id, process in list(left.items()):
                    await process.wait()
                    del left[node_id]
        except TimeoutError:
            self._say(f"killing what did not stop in {_STOP_TIMEOUT_S:g} s: {', '.join(left)}")
        finally:
            for process in left.values():
                _signal(process, signal.SIGKILL)
            for process in left.values():
                await process.wait()
            await self._stop_those_by_hand()

    async def _stop_those_by_hand(self) -> None:
        """Stop nodes of this cluster that a person started again after their death."""
        left = self._by_hand()
        for node_id, holder in left.items():
            self._say(f"stopping {node_id}, started by hand (process {holder.pid})")
            with suppress(ProcessLookupError):
                os.kill(holder.pid, signal.SIGTERM)
        until_s = time.monotonic() + _STOP_TIMEOUT_S
        while left and time.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)
            left = {node_id: holder for node_id, holder in left.items() if holder.lives()}
        for node_id, holder in left.items():
            self._say(f"{node_id} does not stop; stop it with: kill -9 {holder.pid}")

    def _by_hand(self) -> dict[str, Holder]:
        """Return the processes that listen on a node's port with its configuration, by node."""
        found = {}
        for node in self._nodes:
            holder = holder_of(node.port)
            if holder is not None and holder.runs(node.config_file):
                found[node.id] = holder
        return found


def _program() -> str:
    """Return the command as the user typed it, or its plain name."""
    called = sys.argv[0]
    return called if Path(called).name == "codeq-cluster" else "codeq-cluster"


def _signal(process: Process, number: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(number)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"


def _last_line(log: Path) -> str:
    """Return the last line of a log, or its path if it is empty."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _LAST_LINE_BYTES))
            lines = stream.read().decode(errors="replace").split("\n")
    except OSError as error:
        return f"{log}: {error.strerror or error}"
    said = [line for line in lines if line.strip()]
    return said[-1] if said else f"see {log}"
