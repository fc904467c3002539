"""Dev time: the route that moves a node's clock, by its callers and at its bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from codeq_cluster.api.routes.dev_time import ADVANCE_S_MAX
from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.testing.broker import TOKEN, LocalBroker
from tests.harness.http import HttpAnswer, fetch

_TIME = "/v1/codeq/dev/time"
_SCOPES = {
    "producer": [],
    "worker": sorted(WORKER_SCOPES),
    "operator": ["codeq:operator"],
    "admin": ["codeq:admin"],
}
_TOKENS = [
    {"token": name, "subject": name, "scopes": scopes, "eventTypes": ["*"]}
    for name, scopes in _SCOPES.items()
]
_ALL = {
    "token": TOKEN,
    "subject": "test",
    "scopes": [*sorted(WORKER_SCOPES), "codeq:admin"],
    "eventTypes": ["*"],
}
_PROVIDER = [{"kind": "static", "tokens": [*_TOKENS, _ALL]}]
_BEGAN = datetime(2027, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for tests that leave no work behind."""
    settings = {"auth": {"producer": _PROVIDER, "worker": _PROVIDER}}
    directory = tmp_path_factory.mktemp("broker")
    with LocalBroker(directory, settings=settings, now=_BEGAN) as running:
        yield running


def _send(broker: LocalBroker, body: Any = None, *, token: str = "admin") -> HttpAnswer:
    method, content = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
    return fetch(method, broker.url, _TIME, token=token, body=content)


@pytest.mark.parametrize(
    ("caller", "status"),
    [("", 401), ("producer", 401), ("worker", 401), ("operator", 401), ("admin", 200)],
)
def test_admins_alone_may_see_and_move_the_clock(
    broker: LocalBroker, caller: str, status: int
) -> None:
    """Anybody else gets the answer of every admin route."""
    before = broker.now
    moved = _send(broker, {"advanceSeconds": 3600}, token=caller)

    assert (status, status) == (_send(broker, token=caller).status, moved.status)
    assert (status == 200) == ((broker.now - before).total_seconds() >= 3600)


def test_an_instant_is_reached_exactly(broker: LocalBroker) -> None:
    """`to` names it; the clock then runs on with the machine's."""
    goal = broker.now.replace(year=broker.now.year + 1, microsecond=0)
    answer = _send(broker, {"to": goal.isoformat()})
    shown = datetime.fromisoformat(answer.json["now"])

    assert [] == answer.json["fired"]
    assert 0 <= (shown - goal).total_seconds() < 60


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid-time"),
        ({"advanceSeconds": 1, "to": "2999-01-01T00:00:00Z"}, "invalid-time"),
        ({"to": "tomorrow"}, "invalid-time"),
        ({"to": "2020-01-01T00:00:00Z"}, "invalid-time"),
        ({"to": "9999-12-31T00:00:00Z"}, "invalid-time"),
        ({"advanceSeconds": 0}, "out-of-range"),
        ({"advanceSeconds": ADVANCE_S_MAX + 1}, "out-of-range"),
        ({"advanceSeconds": 1, "patienceSeconds": 11}, "out-of-range"),
        ({"advanceSeconds": 1, "skip": ["a"]}, "invalid-field"),
        ({"advanceSeconds": 1, "only": ["a"]}, "not-found"),
        ({"advanceSeconds": 1, "until": "nobody"}, "not-found"),
        ({"advanceSeconds": 1, "until": "///"}, "not-found"),
        ({"advanceSeconds": "a day"}, "invalid-body"),
    ],
)
def test_a_request_that_says_nothing_useful_moves_nothing(
    broker: LocalBroker, body: dict[str, object], code: str
) -> None:
    """It is refused before the clock moves."""
    before = broker.now
    refused = _send(broker, body)

    assert code == refused.json["code"], refused.body
    assert (broker.now - before).total_seconds() < 60


def test_a_second_advance_is_refused_while_one_is_under_way(broker: LocalBroker) -> None:
    """The first waits for a worker that has a task; the clock is then moved once."""
    with broker.sync_client() as client, ThreadPoolExecutor(2) as threads:
        task = client.create("slow", 1)
        body = {"advanceSeconds": 3600, "patienceSeconds": 2}
        answers = list(threads.map(lambda _: _send(broker, body), range(2)))
        client.cancel(task.id)

    assert [200, 409] == sorted(answer.status for answer in answers)
    [refused] = [answer.json for answer in answers if answer.status == 409]
    assert ("time-moves", True) == (refused["code"], refused["retryable"])


def test_a_task_that_does_not_end_says_where_the_clock_was_left(broker: LocalBroker) -> None:
    """The whole time has passed."""
    with broker.sync_client() as client:
        task = client.create("unheard", 1)
        answer = _send(broker, {"advanceSeconds": 60, "until": task.id})
        client.cancel(task.id)

    assert (409, "not-ended") == (answer.status, answer.json["code"])
    assert answer.json["detail"].startswith(f"now is {broker.now:%Y-%m-%dT%H:}")


def test_too_many_stops_name_the_schedule(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has fired by then has fired, and the next request goes on."""
    monkeypatch.setattr("codeq_cluster.virtual_time.clock_stepper.STOPS_MAX", 5)
    with broker.sync_operator() as operator:
        task = {"command": "tick", "payload": {}}
        operator.put_schedule({"id": "often", "every": "1m", "task": task})
        answer = _send(broker, {"advanceSeconds": 3600})
        operator.delete_schedule("often")

    assert (409, "too-many-stops") == (answer.status, answer.json["code"])
    assert "6 of them for often" in answer.json["detail"]


def test_schedules_that_are_not_named_do_not_fire(broker: LocalBroker) -> None:
    """They go on from the time at which the clock stops."""
    with broker.sync_operator() as operator:
        task = {"command": "unheard", "payload": {}}
        for name in ("named", "unnamed"):
            operator.put_schedule({"id": name, "every": "6h", "overlap": "allow", "task": task})
        alone = _send(broker, {"advanceSeconds": 86_400, "only": ["named"]})
        nothing = _send(broker, {"advanceSeconds": 86_400, "only": []})
        after = operator.schedule("unnamed")
        for name in ("named", "unnamed"):
            operator.delete_schedule(name)

    assert ["named"] * 4 == [each["schedule"] for each in alone.json["fired"]]
    assert [] == nothing.json["fired"]
    assert ("active", 0) == (after.state, after.made)
    assert broker.now < after.next[0].at


def test_the_nodes_document_describes_the_route(broker: LocalBroker) -> None:
    """A client of any language can be generated with it; other nodes' documents lack it."""
    document = fetch("GET", broker.url, "/openapi.json").json

    assert {"get", "post"} == document["paths"][_TIME].keys()
