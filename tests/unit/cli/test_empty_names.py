"""Empty names: a command refuses an empty id, and what is no text, before it asks a cluster."""

from __future__ import annotations

import io
import sys

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


@pytest.mark.parametrize(
    "line",
    [
        ("task", "get", "\udcff"),
        ("task", "list", "--queue", "\udcff"),
        ("task", "create", "--command", "\udcff", "--payload", "1"),
        ("task", "create", "--command", "c", "--payload", '"\udcff"'),
        ("schedule", "put", "s", "--command", "c", "--every", "1h", "--payload", '"\udcff"'),
        ("task", "list", "--token", "of-a-file\n"),
    ],
)
def test_what_is_no_text_ends_with_one_line(
    line: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell passes on any bytes, and a secret's file may end with a line break."""
    code = main([*line, "--url", "http://127.0.0.1:9"])
    error = capsys.readouterr().err

    assert code in {1, 2}
    assert ("codeq-cluster: ", 1) == (error[:15], error.count("\n"))


@pytest.mark.parametrize(
    "line",
    [
        ("task", "create", "--command", "c", "--payload", "-"),
        ("schedule", "put", "s", "--file", "-"),
        ("schedule", "apply", "--owner", "o", "--file", "-"),
        ("topic", "put", "t", "--policy", "-"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("content", [b"\xff", b"[" * 200_000 + b"]" * 200_000])
def test_input_that_is_no_json_ends_with_one_line(
    line: tuple[str, ...],
    content: bytes,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor JSON that nests deeper than anything reads."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    code = main(list(line))
    error = capsys.readouterr().err

    assert 2 == code
    assert ("codeq-cluster: -", 1) == (error[:16], error.count("\n"))
