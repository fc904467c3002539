"""Command `schedule`: schedules are put, applied, listed, triggered and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.testing.broker import LocalBroker

NIGHT = ("--cron", "30 2 * * *", "--zone", "Europe/Berlin")
MARCH = ("--from", "2026-03-01T00:00:00Z", "--to", "2026-03-10T00:00:00Z")

Run = Callable[..., tuple[list[str], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a verb, and returns the lines it prints and its notes."""

    def ran(*arguments: str, code: int = 0) -> tuple[list[str], str]:
        ended = main(["schedule", *arguments])
        printed, noted = capsys.readouterr()
        assert code == ended, noted
        return [line.rstrip() for line in printed.splitlines()], noted

    return ran


def _document(lines: list[str]) -> Any:
    return json.loads("\n".join(lines))


def test_a_night_with_an_hour_twice_is_printed(run: Run) -> None:
    """A job that follows elapsed time fires again, and the table says so."""
    night = ("--zone", "Europe/Berlin", "--from", "2026-10-25T00:00:00Z", "--utc")
    printed, noted = run("preview", "*/30 2 * * *", *night, "--count", "3")

    assert [
        "AT (+00:00)          IN Europe/Berlin",
        "2026-10-25 00:30:00  2026-10-25 02:30:00",
        "2026-10-25 01:00:00  2026-10-25 02:00:00, the second time",
        "2026-10-25 01:30:00  2026-10-25 02:30:00, the second time",
    ] == printed
    assert "rules of time zones: 2" in noted


def test_an_interval_is_printed_as_json(run: Run) -> None:
    """The answer is printed as the broker gave it."""
    [line], _ = run(
        *("preview", "--every=12h", "--offset=5m", "--from=2026-06-01T00:05:00Z"),
        *("--count=2", "--json"),
    )

    assert ["2026-06-01T12:05:00", "2026-06-02T00:05:00"] == [
        each["local"] for each in json.loads(line)["instants"]
    ]


def test_what_cannot_be_read_is_refused(run: Run) -> None:
    """The line names field and position."""
    assert "cron, character 4: the hour cannot be '26'" in run("preview", "30 26 * * *", code=4)[1]
    put = ("put", "odd", "--command", "c", "--cron", "30 26 * * *")
    assert "cron, character 4: the hour cannot be '26'" in run(*put, code=4)[1]


@pytest.mark.parametrize("form", [["--json"], ["--utc"]])
def test_a_schedule_is_put_with_flags_and_shown(run: Run, form: list[str]) -> None:
    """Each flag is a field; a second put without flags gives their defaults."""
    name = f"flags{form[0]}".replace("--", "-")
    flags = (
        *("--payload", '{"rate":1.50}', "--priority", "7", "--overlap", "queueOne"),
        *("--missed", "all", "--missed-window", "600", "--jitter", "90", "--max-runs", "100"),
        *("--start-at", "2026-01-01T00:00:00Z", "--end-at", "2096-01-01T00:00:00Z"),
        *("--pause-after-failures", "3", "--note", "for the board"),
    )
    put = _document(run("put", name, *NIGHT, "--command", "report", *flags, *form)[0])
    got = _document(run("get", name, *form)[0])
    bare = _document(run("put", name, "--every=1h", "--offset=5m", "--command", "c", *form)[0])
    run("rm", name, "--yes")

    assert put == got
    assert {"command": "report", "payload": {"rate": 1.5}, "priority": 7} == got["task"]
    assert ("30 2 * * *", "Europe/Berlin", "queueOne") == (got["cron"], got["zone"], got["overlap"])
    assert {"policy": "all", "windowSeconds": 600, "count": 0} == got["missed"]
    assert (90, 100, 3) == (got["jitterSeconds"], got["maxRuns"], got["pauseAfterFailures"])
    assert "for the board" == got["note"]
    assert got["startAt"].startswith("2026-01-01")
    assert got["endAt"].startswith("2096-01-01")
    assert {"02:30:00"} == {each["local"][11:] for each in got["next"]}
    assert ("1h", "5m", 2) == (bare["every"], bare["offset"], bare["version"])
    assert {"command": "c", "payload": {}} == bare["task"]
    assert not {"cron", "note", "startAt", "endAt", "jitterSeconds"} & bare.keys()


def test_a_schedule_is_put_with_a_file(run: Run, broker: LocalBroker, tmp_path: Path) -> None:
    """Numbers of its payload keep every digit."""
    file = tmp_path / "schedule.json"
    file.write_text(
        '{"every": "1h", "task": {"command": "exact", "payload": [1.50, 12345678901234567890.25]}}'
    )
    run("put", "exact", "--file", str(file))
    [task_id], _ = run("trigger", "exact")
    with broker.sync_client() as client:
        task = client.task(task_id)
        client.cancel(task_id)
    run("rm", "exact", "--yes")

    assert "[1.50, 12345678901234567890.25]" == task.payload


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["put", "s", "--cron", "@daily"], "--command: name what"),
        (["put", "s", "--file", "none.json"], "--file none.json: [Errno 2]"),
        (["put", "s", "--file", "-", "--note", "n"], "give either"),
        (["put", "s", "--command", "c", "--payload", "{"], "--payload: must be JSON text"),
        (["apply", "--owner", "o", "--file", "none.json"], "must be a JSON array of schedules"),
    ],
)
def test_a_wrong_use_is_told_before_anything_is_sent(
    run: Run, arguments: list[str], said: str
) -> None:
    """One line says what is missing."""
    assert said in run(*arguments, code=2)[1]


def test_a_set_is_applied_and_pruned(run: Run, tmp_path: Path) -> None:
    """A dry run shows the change; a removal needs its flag; a lower revision is refused."""
    file = tmp_path / "set.json"

    def apply(*flags: str, code: int = 0) -> tuple[list[str], str]:
        return run("apply", "-f", str(file), "--owner", "cli", *flags, code=code)

    def write(**schedules: str) -> None:
        made = [
            {"id": each, "every": every, "task": {"command": "c", "payload": 1}}
            for each, every in schedules.items()
        ]
        file.write_text(json.dumps(made))

    write(a="1h", b="1h", c="1h")
    planned = apply("--dry-run")
    none = run("ls", "--owner", "cli")
    made = apply("--revision", "1")
    write(a="1h", b="2h", d="1h")
    withheld = apply("--revision", "2", code=2)
    kept = run("ls", "--owner", "cli", "-q")
    [dry], _ = apply("--prune", "--dry-run", "--json")
    changed = apply("--prune", "--revision", "2")
    stale = apply("--prune", "--revision", "1", code=4)
    left = run("ls", "--owner", "cli", "-q")
    file.write_text("[]")
    [emptied], _ = apply("--prune", "--json")

    assert ["created a", "created b", "created c"] == planned[0] == made[0]
    assert "nothing is changed yet" in planned[1]
    assert (1, "no schedules\n") == (len(none[0]), none[1])
    assert "c would be removed; add --prune to do it" in withheld[1]
    assert ["a", "b", "c"] == kept[0]
    assert {
        "created": ["d"],
        "changed": ["b"],
        "unchanged": ["a"],
        "removed": ["c"],
        "dryRun": True,
    } == json.loads(dry)
    assert ["created d", "changed b", "removed c", "unchanged a"] == changed[0]
    assert "revision 2 stands" in stale[1]
    assert ["a", "b", "d"] == left[0]
    assert ["a", "b", "d"] == json.loads(emptied)["removed"]


def test_runs_are_triggered_paused_and_listed(run: Run, broker: LocalBroker) -> None:
    """A run is made although the schedule is paused; the list shows what became of it."""
    run("put", "runs", *NIGHT, "--command", "runs.report")
    paused = run("pause", "runs")
    [first], _ = run("trigger", "runs", "--idempotency-key", "once")
    again = run("trigger", "runs", "--idempotency-key", "once")
    skipped = run("trigger", "runs", code=4)
    queued = run("trigger", "runs", "--overlap", "queue", "--json")
    [shown], _ = run("ls", "--json")
    listed, _ = run("ls", "--utc")
    resumed = _document(run("resume", "runs", "--catch-up", "--json")[0])
    with broker.sync_client() as client:
        client.cancel(first)
    withheld = run("rm", "runs", code=2)
    dry = run("rm", "runs", "--dry-run", "--json")
    deleted = run("rm", "runs", "--yes")
    gone = run("get", "runs", code=4)

    assert ["runs paused"] == paused[0]
    assert [first] == again[0]
    assert "another run has not ended; see --overlap" in skipped[1]
    assert {"outcome": "queued"} == json.loads(queued[0][0])
    assert "it waits" in queued[1]
    [row] = [each for each in json.loads(shown)["schedules"] if each["id"] == "runs"]
    assert ("paused", 1, 1, 0) == (row["state"], row["running"], row["queued"], row["skipped"])
    [line] = [each for each in listed if each.startswith("runs ")]
    assert "30 2 * * * Europe/Berlin" in line
    assert ("active", "runs") == (resumed["state"], resumed["id"])
    assert "schedule runs (runs.report, 1 running) would be deleted" in withheld[1]
    assert {"id": "runs", "running": 1, "deleted": False} == json.loads(dry[0][0])
    assert ["runs"] == deleted[0]
    assert "not-found" in gone[1]


def test_past_instants_are_fired_once_it_is_confirmed(run: Run) -> None:
    """Without `--yes` they are only counted."""
    run("put", "back-in-march", *NIGHT, "--command", "cli.back")
    counted = run("backfill", "back-in-march", *MARCH, code=2)
    dry = _document(run("backfill", "back-in-march", *MARCH, "--dry-run", "--json")[0])
    before = _document(run("get", "back-in-march", "--json")[0])
    done = run("backfill", "back-in-march", *MARCH, "--overlap", "allow", "--yes")
    later = run("backfill", "back-in-march", "--from", "2090-01-01T00:00:00Z", *MARCH[2:], code=4)
    run("rm", "back-in-march", "--yes")

    assert ["9"] == counted[0]
    assert "9 instants would be fired; add --yes" in counted[1]
    assert (9, 9, True) == (dry["count"], len(dry["instants"]), dry["dryRun"])
    assert "2026-03-01T01:30:00" == dry["instants"][0]["at"][:19]
    assert 0 == before["running"]
    assert ["9"] == done[0]
    assert "9 instants fired" in done[1]
    assert "'to' must be after 'from'" in later[1]
