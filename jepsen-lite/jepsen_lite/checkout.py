"""Checkout: the state of the product that a run tested."""

from __future__ import annotations

import subprocess
from pathlib import Path

from msgspec import Struct

PRODUCT = "codeq_cluster"
CHANGED = "+changes"


class Checkout(Struct, frozen=True, kw_only=True):
    """A state of the product; both names end with `+changes` if files differ from the commit.

    Attributes:
        commit: First 12 digits, or `unknown` outside of git.
        tree: Full hash of `codeq_cluster/`: equal hashes mean the same product, whatever else the
            commits between them changed. Empty outside of git.
    """

    commit: str
    tree: str

    @property
    def exact(self) -> bool:
        """Whether the tree names the whole product that runs."""
        return bool(self.tree) and not self.tree.endswith(CHANGED)


def checkout_of(source: Path) -> Checkout:
    """Return the state of the product in a directory."""
    changed = CHANGED if _git(source, "status", "--porcelain", "--", PRODUCT) else ""
    commit = _git(source, "rev-parse", "--short=12", "HEAD")
    tree = _git(source, "rev-parse", f"HEAD:{PRODUCT}")
    return Checkout(
        commit=commit + changed if commit else "unknown", tree=tree + changed if tree else ""
    )


def _git(source: Path, *arguments: str) -> str:
    """Return git's output about a directory, empty outside of a checkout."""
    done = subprocess.run(
        ["git", "-C", str(source), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""
