"""Messages and targets: what a URL and a message of Kombu mean here."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.client import NewTask, Status, TaskRecord
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.integrations.bodies import fault_of
from codeq_cluster.integrations.celery.messages import KEY, command_of, message_of, task_of
from codeq_cluster.integrations.target import Target, target_of, without_token
from tests.unit.integrations.nested import nested

DEEP = pytest.param(json.dumps(nested(250)), id="deep")
NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


def _message(body: str, **changed: Any) -> dict[str, Any]:
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {KEY: "k", "body_encoding": "utf-8", "delivery_info": {}},
        **changed,
    }


def _task(message: dict[str, Any]) -> NewTask:
    return task_of("jobs", message, now=NOW, deliveries_max=100)


def _record(task: NewTask, *, attempts: int = 1) -> TaskRecord:
    return TaskRecord(
        id="t",
        command=task.command,
        payload=msgspec.json.encode(task.payload).decode(),
        status=Status.IN_PROGRESS,
        attempts=attempts,
        created_at=NOW,
        updated_at=NOW,
    )


@given(st.text(max_size=30))
def test_a_queue_has_a_name_of_its_own_here(queue: str) -> None:
    """Each of Kombu's names that fits leads back to itself, whatever its characters."""
    try:
        command = command_of(queue)
    except ValueError:
        assert queue in {"", ".", ".."} or len(queue.encode()) * 3 > 128
    except UnicodeEncodeError:
        raise AssertionError from None
    else:
        assert queue == unquote(command.replace(":", "%"))


@pytest.mark.parametrize(
    "body", ['[[1, 2.50], {"a": "é"}, {}]', "[NaN]", "", "null", '"\\ud800"', DEEP]
)
def test_a_body_comes_back_as_it_was(body: str) -> None:
    """JSON is readable in the payload and keeps its text; what only Python reads is kept too."""
    message = message_of(_record(_task(_message(body))), tag="t.1")

    assert (body, "utf-8") == (message["body"], message["properties"]["body_encoding"])


@pytest.mark.parametrize("odd", ["file-\udcff.txt", float("inf"), nested(250)])
@pytest.mark.parametrize("part", ["headers", "properties"])
def test_headers_come_back_as_they_were(part: str, odd: object) -> None:
    """Celery shows a task's arguments in one; what only Python reads is carried as a text."""
    sent = _message("[]")
    sent[part] |= {"odd": odd, "plain": "é"}
    record = _record(_task(sent))
    received = message_of(record, tag="t.1")

    assert "" == fault_of(record.payload.encode())
    assert (odd, "é") == (received[part]["odd"], received[part]["plain"])


def test_the_payload_can_be_read() -> None:
    """The arguments of a task are JSON on the page, not a text of JSON."""
    payload = msgspec.json.decode(msgspec.json.encode(_task(_message("[[7], {}, {}]")).payload))

    assert [[7], {}, {}] == payload["body"]


def test_a_repeated_publish_has_one_key_and_one_payload() -> None:
    """What differs between repetitions is not sent."""
    first, second = _message("[]"), _message("[]")
    first["properties"]["delivery_tag"] = "1"
    second["properties"]["delivery_tag"] = "2"

    assert _task(first) == _task(second)
    assert "kombu:k:jobs" == _task(first).idempotency_key


def test_an_eta_is_the_brokers_delay_and_expires_the_workers_to_judge() -> None:
    """No worker holds a task until its hour; one that expired needs a worker to store that."""
    eta, ends = NOW + timedelta(days=1), NOW + timedelta(hours=2)
    headers = {"eta": eta.isoformat(), "expires": ends.isoformat()}

    message = _message("[]", headers=headers)
    message["properties"]["expiration"] = "7200000"

    task = _task(message)

    assert (eta, None) == (task.run_at, task.ttl)


def test_an_eta_of_the_past_and_beyond_the_bound() -> None:
    """The first is none; of the second a worker holds what is left."""
    past = {"eta": (NOW - timedelta(hours=1)).isoformat()}
    far = {"eta": (NOW + timedelta(days=1000)).isoformat()}

    assert _task(_message("[]", headers=past)).run_at is None
    assert NOW + timedelta(days=366) == _task(_message("[]", headers=far)).run_at


@pytest.mark.parametrize(("expiration", "seconds"), [("90000", 90), ("0", 1)])
def test_the_expiration_of_a_message_is_its_time_to_live(expiration: str, seconds: int) -> None:
    """AMQP has it in milliseconds; one that is over already is not one without an end."""
    message = _message("[]")
    message["properties"]["expiration"] = expiration

    assert timedelta(seconds=seconds) == _task(message).ttl


def test_a_second_delivery_says_so() -> None:
    """Celery's deduplication asks for it."""
    record = _record(_task(_message("[]")), attempts=2)

    assert message_of(record, tag="t.2")["properties"]["delivery_info"]["redelivered"]


@pytest.mark.parametrize("payload", ["{}", "7", '{"body":1,"headers":{},"properties":{}}'])
def test_a_task_of_somebody_else_is_no_message(payload: str) -> None:
    """A queue that others create tasks in is told from one of messages."""
    task = NewTask("jobs", msgspec.Raw(payload.encode()))
    with pytest.raises(ValueError, match="is no message of Kombu"):
        message_of(_record(task), tag="t.1")


def test_celery_hides_a_token_that_is_the_password_of_its_urls() -> None:
    """As `celery report`, `inspect conf` and Flower show settings, also with several nodes."""
    url = "codeq://:hush@n1:8080,n2:8080"
    app = Celery("shown", broker=url, backend=url, set_as_current=False)

    assert "hush" not in app.conf.humanize(with_defaults=True, censored=True)
    assert "codeq://:********@n1:8080,n2:8080" in app.conf.humanize(censored=True)


def test_a_url_names_nodes_token_and_authorities() -> None:
    """Several nodes, default port, TLS by scheme, by option and by Celery's setting."""
    plain = target_of("codeq://tok%40en@n1,n2:81")
    secure = target_of("codeqs://:token@n1?ca=/ca.pem")
    by_setting = target_of("codeq://n1", token="t", ssl={"ca_certs": "/ca.pem"})

    assert Target(urls=("http://n1:8080", "http://n2:81"), token="tok@en") == plain
    assert (("https://n1:8080",), "token", Path("/ca.pem")) == (
        secure.urls,
        secure.token,
        secure.ca_file,
    )
    assert Path("/ca.pem") == by_setting.ca_file


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("codeq://n1", "write codeq://TOKEN@HOST:PORT"),
        ("codeq://secret@", "write codeq://TOKEN@HOST:PORT"),
        ("codeq://secret@n1?x=1", "unknown option x; use ca"),
        ("redis://secret@n1", "must begin with codeq:// or codeqs://"),
        ("codeq://secret@n1:8080,n2:http", "n2:http: the port must be a number"),
        ("codeq://secret@n1:65536", "n1:65536: the port must be a number"),
        ("codeq://secret@n1:8080/0", "remove /0"),
    ],
)
def test_a_wrong_url_is_refused_without_its_token(url: str, remedy: str) -> None:
    """The message says what to write, and can be logged."""
    with pytest.raises(ConfigInvalid, match=remedy) as refused:
        target_of(url)

    assert "secret" not in str(refused.value)
    assert "secret" not in without_token(url)
