"""Scenario: the commands of a scenario file, on a simulated cluster of real groups."""

from __future__ import annotations

from tests.simulator.invariants import InvariantViolated

from .stage_clients import Clients
from .stage_looks import Looks


class Scenario(Clients, Looks):
    """One cluster at a time, and the commands that a scenario file can give it.

    A command is a word, then arguments, then options `name=value`. Times are in seconds. A broken
    invariant is printed as output, so that a file can show the damage that a rule prevents.
    """

    def run(self, line: str) -> str:
        """Run one command; return its output.

        Raises:
            ValueError: There is no such command.
        """
        name, *rest = line.split()
        words = [word for word in rest if "=" not in word]
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        command = getattr(self, "_do_" + name.replace("-", "_"), None)
        if command is None:
            known = sorted(each[4:].replace("_", "-") for each in dir(self) if each[:4] == "_do_")
            raise ValueError(f"no command {name!r}; there are {', '.join(known)}")
        try:
            said: str | None = command(*words, **options)
        except InvariantViolated as violation:
            return f"violated: {violation}"
        return said or ""
