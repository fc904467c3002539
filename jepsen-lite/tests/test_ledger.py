"""Ledger: its lines on mutants and states of the product, and hunts resumed from them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from jepsen_lite.checkout import CHANGED, PRODUCT, checkout_of
from jepsen_lite.hunting import entered, hunted, table
from jepsen_lite.ledger import Line, enter, read
from jepsen_lite.mutants import Mutant, mutants


def git(repository: Path, *arguments: str) -> str:
    """Return the output of a git command."""
    return subprocess.run(
        ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a checkout with one commit of a product and of another file."""
    for name in (f"{PRODUCT}/node.py", "docs/page.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("one\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    return tmp_path


def line(mutant: Mutant, tree: str, *, violated: tuple[str, ...]) -> Line:
    """Return a ledger line for a run of a mutant."""
    return Line(
        begun="2026-01-01T00:00:00+00:00",
        commit="0" * 12,
        tree=tree,
        mutant=mutant.name,
        patch=mutant.digest,
        took_s=30.0,
        verdict="violation" if violated else "valid",
        violated=violated,
    )


def test_a_tree_is_the_product_s_alone(repository: Path) -> None:
    """A commit outside of the product keeps the tree's hash; one of the product changes it."""
    first = checkout_of(repository)
    (repository / "docs/page.md").write_text("two\n")
    git(repository, "commit", "--quiet", "--all", "--message", "two")
    beside = checkout_of(repository)
    (repository / PRODUCT / "node.py").write_text("two\n")
    git(repository, "commit", "--quiet", "--all", "--message", "three")
    after = checkout_of(repository)

    assert first.exact
    assert git(repository, "rev-parse", f"HEAD~2:{PRODUCT}") == first.tree
    assert 3 == len({first.commit, beside.commit, after.commit})
    assert first.tree == beside.tree != after.tree


def test_uncommitted_files_are_marked(repository: Path) -> None:
    """A state with uncommitted files cannot be found again, so nothing is resumed from it."""
    [mutant] = mutants(["M03"])
    before = checkout_of(repository)
    (repository / PRODUCT / "more.py").write_text("new\n")
    checkout = checkout_of(repository)
    ledger = repository / "ledger.jsonl"
    enter(line(mutant, checkout.tree, violated=("G7",)), ledger)

    assert not checkout.exact
    assert (before.commit + CHANGED, before.tree + CHANGED) == (checkout.commit, checkout.tree)
    assert [] == entered(mutant, checkout, ledger)


def test_a_directory_outside_of_git_is_unknown(tmp_path: Path) -> None:
    """Outside of git the commit is `unknown` rather than something that looks like a commit."""
    checkout = checkout_of(tmp_path)

    assert ("unknown", "") == (checkout.commit, checkout.tree)
    assert not checkout.exact


def test_a_hunt_is_resumed_by_the_same_patch_on_the_same_tree(repository: Path) -> None:
    """Lines for another state of the product, or another patch, are ignored."""
    [mutant] = mutants(["M03"])
    checkout = checkout_of(repository)
    ledger = repository / "ledger.jsonl"
    missed = line(mutant, checkout.tree, violated=())
    found = line(mutant, checkout.tree, violated=("G14", "G7"))
    enter(line(mutant, "f" * 40, violated=("G7",)), ledger)
    enter(msgspec.structs.replace(found, patch="0" * 12), ledger)
    for each in (missed, line(mutant, checkout.tree, violated=("G14",))):
        enter(each, ledger)
    unnoticed = hunted(mutant, entered(mutant, checkout, ledger))
    enter(found, ledger)
    enter(missed, ledger)
    noticed = hunted(mutant, entered(mutant, checkout, ledger))

    assert (False, 2) == (unnoticed.caught, unnoticed.runs)
    assert (True, 3, 90.0) == (noticed.caught, noticed.runs, noticed.seconds)
    assert ("G14", "G7") == noticed.violated


def test_a_mutant_that_was_never_run_is_neither_noticed_nor_missed() -> None:
    """The table shows such a mutant as not run."""
    [mutant] = mutants(["M03"])

    assert "| lease | none | not run |  |  |" in table([hunted(mutant, [])])


def test_all_mutants_of_runs_were_noticed_on_one_state_of_the_product() -> None:
    """The ledger proves the README's table."""
    noticed_on = [_noticed_on(each) for each in mutants() if not each.test]

    assert set.intersection(*noticed_on)


def test_every_mutant_of_a_test_was_noticed_on_some_state_of_the_product() -> None:
    """These tests run on every state, and so does the test each of these mutants names."""
    assert all(_noticed_on(each) for each in mutants() if each.test)


def _noticed_on(mutant: Mutant) -> set[str]:
    lines = [line for line in read() if line.mutant == mutant.name]
    return {line.tree for line in lines if mutant.breaks in line.violated} - {""}


def test_every_line_names_its_tree() -> None:
    """Every tree is forty digits, or is marked as a state without a commit."""
    lines = read()
    first = next(n for n, line in enumerate(lines) if line.tree)

    assert all(len(line.tree.removesuffix(CHANGED)) == 40 for line in lines[first:])
    assert "unknown" not in {line.commit for line in lines[first:]}
