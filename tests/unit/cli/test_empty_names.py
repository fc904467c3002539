"""Empty names: a command refuses an empty id before it asks a cluster."""

from __future__ import annotations

import pytest

from codeq_cluster.cli.main import main


@pytest.mark.parametrize(
    "line",
    [
        ("task", "get", ""),
        ("task", "signal", "t", " "),
        ("schedule", "get", ""),
        ("limit", "show", ""),
        ("tail", "--task", ""),
        ("bulk", "cancel", "--group", ""),
    ],
    ids=" ".join,
)
def test_an_empty_id_or_name_is_a_wrong_use(
    line: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty path would name another route, and an empty filter select everything."""
    with pytest.raises(SystemExit) as ended:
        main(list(line))

    assert 2 == ended.value.code
    assert "is empty: is a shell variable not set? See" in " ".join(capsys.readouterr().err.split())
