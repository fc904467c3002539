"""Completion: bash's completions with the printed script."""

from __future__ import annotations

import subprocess

import pytest

from codeq_cluster.cli.main import main


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the script for bash."""
    assert 0 == main(["completion", "bash"])
    return capsys.readouterr().out


def _completed(script: str, *words: str) -> set[str]:
    """Return bash's completions of the last word."""
    typed = " ".join(f"'{word}'" for word in ("codeq-cluster", *words))
    asked = (
        f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _shtab_codeq_cluster; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{asked}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {line.strip() for line in ended.stdout.splitlines() if line.strip()}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("clu",), {"cluster"}),
        (("cluster", "re"), {"rebalance", "recover", "remove", "replace"}),
        (("profile", "u"), {"use"}),
        (("queue", "ls", "--prof"), {"--profile"}),
        (("token", "--as", "wor"), {"worker"}),
    ],
)
def test_commands_flags_and_choices_are_completed(
    script: str, words: tuple[str, ...], offered: set[str]
) -> None:
    """Bash completes exactly those of this release."""
    assert offered == _completed(script, *words)


def test_files_are_completed_where_a_file_is_meant(
    script: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The shell's own completion of files is used."""
    file = tmp_path_factory.mktemp("certificates") / "authority.pem"
    file.touch()

    assert {str(file)} == _completed(script, "status", "--ca", str(file)[:-6])


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh", "powershell"])
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each script has the names of the commands."""
    assert 0 == main(["completion", shell])

    script = capsys.readouterr().out
    assert all(name in script for name in ("codeq-cluster", "profile", "cluster"))
