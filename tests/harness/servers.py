"""Servers: processes with a log that a test or a bench starts, freezes, stops and kills."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LOG_TAIL_LINES = 60


class Server:
    """One server: its log, and its process while it has one.

    Attributes:
        log_path: Standard output and error of every run, one after the other.
        process: None before the first start, and after `kill` and `stop`.
        paused: It was frozen and not resumed.
    """

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False

    @property
    def running(self) -> bool:
        """Whether the process lives, frozen or not."""
        return self.process is not None and self.process.poll() is None

    @property
    def answering(self) -> bool:
        """Whether it can be asked anything."""
        return self.running and not self.paused

    @property
    def pid(self) -> int:
        """The process id of a server that was started."""
        assert self.process is not None, "it does not run"
        return self.process.pid

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], *, cwd: Path | None = None
    ) -> None:
        """Start a stopped server, without waiting until it serves.

        Call it from a thread that lives as long as the server: Linux kills the server with it.
        """
        assert not self.running, "it runs already"
        if shutil.which("setpriv"):
            # A killed harness cannot stop its servers, and a frozen one does not notice its end.
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=cwd,
                # Ctrl-C at the terminal must reach only the harness, which then stops its servers.
                start_new_session=True,
            )
        self.paused = False

    def terminate(self, sign: signal.Signals = signal.SIGTERM) -> None:
        """Ask the server to stop; safe to call again."""
        if self.process is not None:
            self.process.send_signal(sign)

    def kill(self) -> int | None:
        """Kill the server and its children with SIGKILL, and reap it.

        Returns:
            Its exit status, -SIGKILL if the kill ended it; None if it was not started.
        """
        if self.process is None:
            return None
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        self.process, self.paused = None, False
        return status

    def stop(self, *, within_s: float, sign: signal.Signals = signal.SIGTERM) -> int | None:
        """Stop the server with a signal, and with SIGKILL if it takes longer than `within_s`.

        Returns:
            Its exit status; None if it had to be killed, or was not started.
        """
        if self.process is None:
            return None
        self.terminate(sign)
        try:
            status = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self.process, self.paused = None, False
        return status

    def pause(self) -> None:
        """Freeze it with SIGSTOP: it keeps its connections and answers nothing."""
        assert self.process is not None, "it does not run"
        self.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Resume it after a `pause`."""
        assert self.process is not None, "it does not run"
        self.process.send_signal(signal.SIGCONT)
        self.paused = False

    @property
    def stands(self) -> bool:
        """Whether it is stopped, by its state in the kernel."""
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state in "Tt"

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        if not self.log_path.exists():
            return ""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def logged_since(self, offset: int) -> str:
        """Return the part of the log after the first `offset` bytes."""
        with self.log_path.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")
