"""Odd arguments: numbers of any size, JSON that is none, and names that no queue can have."""

from __future__ import annotations

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.testing.broker import LocalBroker

HUGE = "9" * 5000  # Python reads at most 4300 digits.


def test_a_number_of_any_size_goes_in_and_comes_out(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker keeps payloads as they were sent, so others may send such numbers."""
    task = ["--command", "huge", "--payload", f'{{"n":{HUGE}}}']
    put = main(["schedule", "put", "huge", "--every", "300h", *task])
    created = main(["task", "create", *task])
    capsys.readouterr()
    shown = main(["schedule", "get", "huge"])
    one = capsys.readouterr().out
    listed = main(["schedule", "ls", "--json"])
    several = capsys.readouterr().out

    assert [0] * 4 == [put, created, shown, listed]
    assert f'"n": "{HUGE}"' in one
    assert f'"n": "{HUGE}"' in several


def test_a_queue_that_cannot_be_is_called_so(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The word of the API's refusal, `topicName`, is none of the command line."""
    code = main(["queue", "inspect", "a b"])

    assert 4 == code
    assert "there is no queue a b; queue ls lists the queues" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["NaN", '{"n":Infinity}', "[" * 5000 + "]" * 5000])
@pytest.mark.parametrize(
    "line",
    [
        ("task", "create", "--command", "c", "--payload"),
        ("task", "signal", "t", "s", "--payload"),
        ("dlq", "requeue", "c", "--id", "t", "--yes", "--payload"),
        ("dlq", "requeue", "c", "--all", "--yes", "--patch"),
    ],
    ids=" ".join,
)
def test_what_is_no_json_is_a_wrong_use(
    line: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused by the flag's name, before a cluster is asked."""
    try:
        code = main([*line, text])
    except SystemExit as ended:
        code = int(ended.code or 0)

    assert 2 == code
    assert f"{line[-1]}: must be " in capsys.readouterr().err
