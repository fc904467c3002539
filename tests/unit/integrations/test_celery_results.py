"""Results: Celery's own result objects, with its worker in this process, against a real broker."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord, group, states
from celery.contrib.testing.worker import start_worker
from celery.exceptions import ChordError, TaskRevokedError
from celery.exceptions import TimeoutError as TimeIsUp
from kombu.exceptions import EncodeError

from codeq_cluster.client import Refused
from codeq_cluster.integrations.celery.backend import QUEUE, Results
from codeq_cluster.testing.broker import LocalBroker

WITHIN_S = 20
DEEP = pytest.param("[" * 250 + "]" * 250, id="deep")


@pytest.fixture(scope="module")
def app(broker: LocalBroker) -> Iterator[Celery]:
    """Run an application whose broker and results have one URL."""
    url = broker.url.replace("http://", f"codeq://{broker.token}@")
    app = Celery("results", broker=url, backend=url, set_as_current=False)
    app.conf.update(task_default_queue="results-app", result_chord_retry_interval=0.1)

    @app.task(name="add", shared=False)
    def add(left: int, right: int) -> int:
        return left + right

    @app.task(name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(name="fails", shared=False)
    def fails(text: str) -> None:
        raise LookupError(text)

    @app.task(name="fails-large", shared=False)
    def fails_large(size: int) -> None:
        raise LookupError("x" * size)

    @app.task(name="reports", bind=True, shared=False)
    def reports(self: Any, times: int) -> int:
        for n in range(times):
            self.update_state(state="PROGRESS", meta={"n": n})
        return times

    @app.task(name="same", shared=False)
    def same(value: object) -> object:
        return value

    @app.task(name="large", shared=False)
    def large(size: int) -> str:
        return "x" * size

    with start_worker(app, pool="solo", perform_ping_check=False):
        yield app


def _backend(app: Celery) -> Results:
    backend: Results = app.backend
    return backend


def _apply(app: Celery, name: str, *given: object) -> Any:
    return app.tasks[name].delay(*given)


def test_a_result_is_what_the_task_returned(app: Celery) -> None:
    """By the producer's object, and by the id alone in another."""
    sent = _apply(app, "add", 1, 2)

    assert 3 == sent.get(timeout=WITHIN_S)
    known = app.AsyncResult(sent.id)
    assert (states.SUCCESS, 3) == (known.state, known.result)


def test_a_failure_is_raised_with_its_traceback(app: Celery) -> None:
    """The exception is the task's own, and its traceback names the line."""
    sent = _apply(app, "fails", "nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        sent.get(timeout=WITHIN_S)
    assert "raise LookupError(text)" in sent.traceback


@pytest.mark.parametrize("size", [600_000, 2_000_000])
def test_a_failure_that_is_too_large_is_heard_of(app: Celery, size: int) -> None:
    """Its text is in the exception and again in the traceback; nobody waits for it for ever."""
    sent = _apply(app, "fails-large", size)

    with pytest.raises(EncodeError, match=r"it begins: .*LookupError.*xxx"):
        sent.get(timeout=WITHIN_S)
    assert states.FAILURE == sent.state
    assert "in fails_large" in sent.traceback


def test_a_task_that_expired_before_a_worker_had_it_is_revoked(app: Celery) -> None:
    """Its waiters hear of it, in a chord too, and none waits for ever."""
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    expired = app.tasks["add"].apply_async((1, 2), expires=hour_ago)
    parts = [app.tasks["add"].s(1, 2).set(expires=hour_ago), app.tasks["add"].s(3, 4)]
    body = chord(parts, app.tasks["total"].s()).apply_async()

    with pytest.raises(TaskRevokedError, match="expired"):
        expired.get(timeout=WITHIN_S)
    assert isinstance(body.get(timeout=WITHIN_S, propagate=False), ChordError)
    assert states.REVOKED == app.AsyncResult(expired.id).state


def test_what_json_cannot_carry_goes_through_a_chain(app: Celery) -> None:
    """A name of a file may have a lone surrogate, and the results of canvases nest deep."""
    add, same = app.tasks["add"], app.tasks["same"]
    steps = chord([chain(*[add.si(1, 1)] * 120), add.si(2, 2)], app.tasks["total"].s())

    assert "file-\udcff" == chain(same.s("file-\udcff"), same.s()).delay().get(timeout=WITHIN_S)
    assert 6 == steps.delay().get(timeout=WITHIN_S)


def test_a_chain_a_group_and_a_chord(app: Celery) -> None:
    """The canvas works as with any other store; a chord with a failed part fails with it."""
    add, total, fails = (app.tasks[name] for name in ("add", "total", "fails"))

    assert 6 == chain(add.s(1, 2), add.s(3)).delay().get(timeout=WITHIN_S)
    assert [0, 2, 4] == group(add.s(n, n) for n in range(3)).delay().get(timeout=WITHIN_S)
    assert 6 == chord((add.s(n, n) for n in range(3)), total.s()).delay().get(timeout=WITHIN_S)
    failed = chord([add.s(1, 1), fails.s("nothing there")], total.s()).delay()
    with pytest.raises(ChordError, match="nothing there"):
        app.AsyncResult(failed.id).get(timeout=WITHIN_S)


def test_the_parts_of_a_chord_are_read_ahead(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, a thousand would keep a worker for half a minute."""
    read, mget = list[int](), Results.mget

    def noted(self: Results, keys: Iterable[str]) -> list[Any]:
        read.append(len(found := list(keys)))
        return mget(self, found)

    monkeypatch.setattr(Results, "mget", noted)
    add, total = app.tasks["add"], app.tasks["total"]
    parts = [group(add.s(n, 1) for n in range(20)), *(add.s(n, 1) for n in range(20))]
    body = chord(parts, total.s()).delay()

    assert 2 * sum(range(21)) == body.get(timeout=WITHIN_S)
    # All parts of the look that found them ended, and then all of them for the body.
    assert [1, 2, 4, 8, 16, 9, 40] == read[-7:]


def test_a_group_is_saved_and_restored(app: Celery) -> None:
    """By its id, until it is deleted."""
    sent = group(app.tasks["add"].s(n, 1) for n in range(2)).delay()
    sent.save()

    restored = app.GroupResult.restore(sent.id)
    assert [1, 2] == restored.get(timeout=WITHIN_S)
    restored.delete()
    assert app.GroupResult.restore(sent.id) is None


@pytest.mark.parametrize("times", [1, 2, 3, 6, 9])
def test_the_last_state_is_the_one_that_counts(app: Celery, times: int) -> None:
    """However many were reported before it; one that was reported again is not the earlier one."""
    sent = _apply(app, "reports", times)

    assert times == sent.get(timeout=WITHIN_S)
    backend = _backend(app)
    for n in range(times):
        backend.store_result(f"by-hand-{times}", {"n": n % 2}, "PROGRESS")
        assert n % 2 == backend.get_task_meta(f"by-hand-{times}", cache=False)["result"]["n"]


def test_what_is_unknown_is_pending_and_what_is_forgotten_too(app: Celery) -> None:
    """A wait for either ends by its time."""
    sent = _apply(app, "add", 1, 2)
    sent.get(timeout=WITHIN_S)
    sent.forget()

    for task_id in sent.id, "never was", "x" * 300:
        assert states.PENDING == app.AsyncResult(task_id).state
        with pytest.raises(TimeIsUp):
            app.AsyncResult(task_id).get(timeout=0)


@pytest.mark.parametrize("key", ["plain", "odd/é key", "k" * 300])
@pytest.mark.parametrize("value", ['{"a": 1.50}', "no json", b"\x00\xff", "", "\ud7ff", DEEP])
def test_a_value_comes_back_as_it_was(app: Celery, key: str, value: str | bytes) -> None:
    """Under any key, whatever a serializer made of it; several are read at once."""
    backend = _backend(app)
    backend.set(key, value)

    assert [value, None] == backend.mget([key, f"{key}-absent"])


def test_a_result_that_is_too_large_fails_its_task(app: Celery) -> None:
    """Nobody waits for it forever."""
    with pytest.raises(EncodeError, match="the result has"):
        _apply(app, "large", 2**21).get(timeout=WITHIN_S)


def test_results_wait_for_no_worker(broker: LocalBroker, app: Celery) -> None:
    """What holds them has ended, and is deleted when its retention is over."""
    sent = _apply(app, "add", 1, 2)
    sent.get(timeout=WITHIN_S)
    with broker.sync_operator() as operator:
        while operator.queue(QUEUE)["ready"]:
            pass
    broker.advance(days=1, minutes=5)

    assert states.PENDING == app.AsyncResult(sent.id).state


def test_a_backend_travels_and_hides_its_token(app: Celery, broker: LocalBroker) -> None:
    """A pickled one knows its URL; a shown one does not show the token."""
    backend = _backend(app)
    app.set_current()

    assert backend.url == pickle.loads(pickle.dumps(backend)).url
    assert broker.token not in backend.as_uri()


def test_a_wrong_token_is_refused(app: Celery, broker: LocalBroker) -> None:
    """At the first request, and not as a result that is never there."""
    backend = Results(app, url=_backend(app).url.replace(broker.token, "other"))
    with pytest.raises(Refused, match="token"):
        backend.get("any")
