"""Doctor: which faults this machine can inject, each tried for real."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Sequence

from msgspec import Struct

from jepsen_lite.fault_schedule import KINDS
from jepsen_lite.nemesis import RESETS
from jepsen_lite.network import namespaces_work
from jepsen_lite.shims import ShimFailed, shim

_COMPILER = "apt install gcc libc6-dev"


class KindsMissing(RuntimeError):
    """Required kinds of faults cannot be injected here; the text says what helps."""


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one trial.

    Attributes:
        kinds: Faults that need it.
        lacks: Why it does not work and what to do, with the Debian package; empty if it works.
    """

    what: str
    kinds: tuple[str, ...]
    lacks: str


def findings() -> list[Finding]:
    """Try everything."""
    cutting = tuple(name for name, kind in KINDS.items() if kind.cuts)
    disks = ("power", "install", "disk-slow", "disk-full", "disk-error")
    clocks = ("clock", "drift")
    others = tuple(name for name in KINDS if name not in {*cutting, *disks, *clocks})
    return [
        Finding(what="signals and files", kinds=others, lacks=""),
        Finding(what="namespaces and TUN devices", kinds=cutting, lacks=namespaces_work()),
        Finding(what="nft reject", kinds=("reset",), lacks=_nft()),
        Finding(what="disk shim", kinds=disks, lacks=shim_works("disk")),
        Finding(what="clock shim", kinds=clocks, lacks=shim_works("clock")),
    ]


def missing(kinds: Collection[str], *, loopback: bool = False) -> dict[str, str]:
    """Return, by kind, why some of these faults cannot be injected here and what to do.

    Args:
        kinds: The wanted kinds.
        loopback: Nodes get loopback addresses, whose links cannot be cut.
    """
    lacking: dict[str, str] = {}
    for found in findings():
        for kind in found.kinds:
            lacks = "no link of loopback can be cut" if loopback and KINDS[kind].cuts else ""
            if kind in kinds and (lacks or found.lacks):
                lacking.setdefault(kind, lacks or found.lacks)
    return lacking


def available(
    kinds: Sequence[str], *, require: bool, loopback: bool = False
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the kinds of faults that can be injected here, and why the others cannot, by kind.

    Args:
        kinds: The wanted kinds.
        require: None may be missing.
        loopback: Nodes get loopback addresses, whose links cannot be cut.

    Raises:
        KindsMissing: One is missing and all are required, or faults are wanted and none is left.
    """
    lacking = missing(kinds, loopback=loopback)
    there = tuple(kind for kind in kinds if kind not in lacking)
    if lacking and (require or not there):
        told = "".join(f"\n  {kind}: {reason}" for kind, reason in lacking.items())
        raise KindsMissing(f"this machine cannot inject all that is asked for:{told}")
    return there, lacking


def shim_works(name: str) -> str:
    """Return an empty text if a shim can be built and loaded, or else the reason and the remedy."""
    try:
        library = shim(name)
    except ShimFailed as failed:
        return f"{failed}: {_COMPILER}"
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(["true"], env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip()


def _nft() -> str:
    if shutil.which("nft") is None:
        return "no nft: apt install nftables"
    # With --check the kernel verifies the rules without putting them in force.
    checked = subprocess.run(
        ["nft", "--check", RESETS], capture_output=True, text=True, check=False
    )
    return f"nft: {checked.stderr.strip()}" if checked.returncode else ""
