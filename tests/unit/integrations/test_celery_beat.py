"""Beat: an application's `beat_schedule` as schedules, by the command, against a real broker."""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.schedules import crontab, schedule
from click.testing import CliRunner, Result

from codeq_cluster.integrations.celery.beat import import_beat, schedules_of
from codeq_cluster.testing.broker import LocalBroker

OWNER = "celery-beat"


class Moon(schedule):
    """A schedule that only its own code knows."""


@pytest.fixture
def app(url: str) -> Celery:
    """Return an application with one task and an empty `beat_schedule`."""
    app = Celery("beaten", broker=url, backend=url, set_as_current=False)
    app.conf.update(task_default_queue="beaten", timezone="Europe/Berlin")

    @app.task(name="add", expires=90, shared=False)
    def add(left: int, right: int) -> int:
        return left + right

    return app


def _entries(app: Celery, **entries: dict[str, Any]) -> None:
    app.conf.beat_schedule = {
        name: {"task": "add", "args": (1, 2), **fields} for name, fields in entries.items()
    }


def _run(app: Celery, *flags: str) -> Result:
    return CliRunner().invoke(import_beat, flags, obj=SimpleNamespace(app=app))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (crontab(minute="*/15"), "*/15 * * * *"),
        (crontab(minute=30, hour="1-3", day_of_week="mon-fri"), "30 1,2,3 * * 1,2,3,4,5"),
        (crontab(0, 0, day_of_month="1,15", month_of_year="*/3"), "0 0 1,15 */3 *"),
        (crontab(0, 6, day_of_week="sun"), "0 6 * * 0"),
    ],
)
def test_a_crontab_is_a_calendar_in_the_zone_of_the_application(
    app: Celery, found: crontab, expected: str
) -> None:
    """Ranges and names are written out; a star stays one."""
    _entries(app, nightly={"schedule": found})
    (made,) = schedules_of(app)

    assert (expected, "Europe/Berlin") == (made.cron, made.zone)


def test_a_run_is_what_beat_would_send(app: Celery) -> None:
    """With its queue, priority and expiry, and the same at each import."""
    options = {"queue": "other", "priority": 7, "expires": timedelta(minutes=5)}
    _entries(app, plain={"schedule": 30}, odd={"schedule": 30, "options": options})
    odd, plain = schedules_of(app)

    assert (timedelta(seconds=30), "allow", "beaten") == (
        plain.every,
        plain.overlap,
        plain.task.command,
    )
    assert ("other", 7, timedelta(minutes=5)) == (odd.task.command, odd.task.priority, odd.task.ttl)
    assert timedelta(seconds=90) == plain.task.ttl
    assert [odd, plain] == schedules_of(app)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": Moon()}, "Moon is no crontab"),
        ({"schedule": 0.5}, "no whole number of seconds"),
        ({"schedule": crontab(day_of_month=1, day_of_week=1)}, "days of the month and of the week"),
        ({"schedule": 30, "options": {"countdown": 5}}, "countdown"),
        ({"schedule": 30, "args": (1,)}, "missing 1 required positional argument"),
    ],
)
def test_what_cannot_be_a_schedule_is_named_and_nothing_is_changed(
    app: Celery, broker: LocalBroker, fields: dict[str, Any], words: str
) -> None:
    """Beside an entry that could be."""
    _entries(app, fine={"schedule": 30}, wrong=fields)
    ran = _run(app)

    assert 1 == ran.exit_code
    assert "wrong: " in ran.output
    assert words in ran.output
    with broker.sync_operator() as operator:
        assert not operator.schedules(owner=OWNER).rows


def test_an_import_shows_what_changes_and_is_repeated_in_peace(
    app: Celery, broker: LocalBroker
) -> None:
    """A dry run changes nothing; what is gone is removed only when it is asked for."""
    _entries(app, kept={"schedule": 3600}, **{"tasks.gone()": {"schedule": 3600}})
    dry = _run(app, "--dry-run")
    first, again = _run(app), _run(app)
    _entries(app, kept={"schedule": 7200})
    withheld, pruned = _run(app), _run(app, "--prune")

    assert dry.output == first.output
    assert ["created", "created"] == [line.split()[0] for line in first.output.splitlines()]
    assert ["unchanged", "unchanged"] == [line.split()[0] for line in again.output.splitlines()]
    assert 1 == withheld.exit_code
    assert "add --prune" in withheld.output
    assert ["changed", "removed"] == [line.split()[0] for line in pruned.output.splitlines()]
    with broker.sync_operator() as operator:
        assert ["kept"] == [row["id"] for row in operator.schedules(owner=OWNER).rows]
        operator.delete_schedule("kept")


def test_a_run_is_done_by_a_worker_under_an_id_of_its_own(app: Celery, broker: LocalBroker) -> None:
    """So each run has its own result; a compressed message is one too."""
    daily = {"schedule": 86_400}
    _entries(app, run=daily, small={**daily, "options": {"compression": "zlib"}})
    assert 0 == _run(app).exit_code
    with (
        broker.sync_operator() as operator,
        start_worker(app, pool="solo", perform_ping_check=False),
    ):
        ids = [operator.trigger_schedule(each).task_id for each in ("run", "run", "small")]
        assert [3, 3, 3] == [app.AsyncResult(each).get(timeout=20) for each in ids]
        for each in ("run", "small"):
            operator.delete_schedule(each)


def test_celery_has_the_command() -> None:
    """By its name, as soon as the package is installed."""
    (found,) = entry_points(group="celery.commands", name="import-beat")

    assert import_beat is found.load()
    assert "import-beat" == import_beat.name


def test_another_broker_is_refused(app: Celery) -> None:
    """Before anything is sent."""
    app.conf.broker_url = "amqp://user:secret@n1"
    ran = _run(app)

    assert 1 == ran.exit_code
    assert "must begin with codeq://" in ran.output
    assert "secret" not in ran.output
