"""Doctor: which faults this machine can inject, each tried and not believed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from msgspec import Struct

from jepsen_lite.network import namespaces_work
from jepsen_lite.shims import ShimFailed, shim
from jepsen_lite.striking import KINDS


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was tried.

    Attributes:
        kinds: Faults that need it.
        lacks: Why it does not work, and what to do; empty when it does.
    """

    what: str
    kinds: tuple[str, ...]
    lacks: str


def findings() -> list[Finding]:
    """Try everything."""
    cutting = tuple(name for name, kind in KINDS.items() if kind.cuts)
    return [
        Finding(what="signals", kinds=("kill", "pause", "restart", "membership", "wipe"), lacks=""),
        Finding(
            what="namespaces and TUN devices",
            kinds=cutting,
            lacks=_with_advice(namespaces_work(), "run as root; loopback addresses otherwise"),
        ),
        Finding(
            what="nft reject",
            kinds=("reset",),
            lacks="" if shutil.which("nft") else "apt install nftables",
        ),
        Finding(
            what="disk shim",
            kinds=("power", "disk-slow", "disk-full", "disk-error", "install"),
            lacks=_with_advice(_shim("disk"), "apt install gcc libc6-dev"),
        ),
        Finding(
            what="clock shim",
            kinds=("clock", "drift"),
            lacks=_with_advice(_shim("clock"), "apt install gcc libc6-dev"),
        ),
    ]


def _with_advice(reason: str, advice: str) -> str:
    return f"{reason}; {advice}" if reason else ""


def _shim(name: str) -> str:
    try:
        library = shim(name)
    except ShimFailed as failed:
        return str(failed)
    return _loads(library)


def _loads(library: Path) -> str:
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(["true"], env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip()
