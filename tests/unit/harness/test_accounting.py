"""Accounting: each planted violation is found, and a clean run has none."""

from __future__ import annotations

from dataclasses import replace

from tests.harness.accounting import (
    FinalTask,
    Percentiles,
    RecordedCall,
    RecordedOperation,
    RecordedOutcome,
    audit,
    repair_seconds,
)

CREATE = RecordedCall(
    operation=RecordedOperation.CREATE,
    node="n1",
    key="k1",
    task_id="t1",
    worker="",
    content='{"key":"k1"}',
    started_s=1.0,
    ended_s=1.1,
    outcome=RecordedOutcome.OK,
    status=202,
    detail="",
    excused=False,
    shard=2,
)
CLAIM = replace(
    CREATE, operation=RecordedOperation.CLAIM, worker="w1", started_s=2.0, ended_s=2.1, status=200
)
RESULT = replace(
    CLAIM, operation=RecordedOperation.RESULT, content="r1", started_s=3.0, ended_s=3.1
)
FINAL = {"t1": FinalTask(status="COMPLETED", content="r1")}


def test_a_run_without_faults_is_clean() -> None:
    """Create, claim and result of one task give an empty verdict."""
    verdict = audit([CREATE, CLAIM, RESULT], FINAL)

    assert verdict.clean, str(verdict)


def test_an_acknowledged_task_that_is_not_there_is_lost() -> None:
    """A task that cannot be read back, or was not, counts as lost."""
    unread = audit([CREATE], {})
    absent = audit([CREATE], {"t1": FinalTask(status="", content="")})

    assert [1, 1] == [len(unread.lost), len(absent.lost)]
    assert not unread.clean


def test_an_acknowledged_task_that_stays_pending_is_unfinished() -> None:
    """A task that nobody could finish is a violation of its own kind."""
    verdict = audit([CREATE], {"t1": FinalTask(status="PENDING", content="")})

    assert [0, 1] == [len(verdict.lost), len(verdict.unfinished)]
    assert not verdict.clean


def test_a_create_nobody_acknowledged_is_not_lost() -> None:
    """An unknown create promises nothing."""
    unknown = replace(CREATE, outcome=RecordedOutcome.UNKNOWN, status=0, task_id="", excused=True)

    assert audit([unknown], {}).clean


def test_two_results_of_different_content_are_finished_twice() -> None:
    """Two workers that both got 200 for their own result are a violation."""
    other = replace(RESULT, worker="w2", content="r2")

    verdict = audit([CREATE, CLAIM, RESULT, other], FINAL)

    assert 1 == len(verdict.finished_twice)
    assert "['w1', 'w2']" in verdict.finished_twice[0]


def test_the_same_result_acknowledged_again_is_no_violation() -> None:
    """A retry of an unknown submit is answered with the stored record."""
    unknown = replace(RESULT, outcome=RecordedOutcome.UNKNOWN, status=0, excused=True)

    assert audit([CREATE, CLAIM, unknown, RESULT, RESULT], FINAL).clean


def test_a_stored_result_without_an_acknowledgement_is_found() -> None:
    """A result that changed after its acknowledgement counts as finished twice."""
    verdict = audit([CREATE, CLAIM, RESULT], {"t1": FinalTask(status="COMPLETED", content="r9")})

    assert 1 == len(verdict.finished_twice)


def test_a_claim_asked_after_an_acknowledged_result_is_found() -> None:
    """A finished task that is delivered again is a violation."""
    again = replace(CLAIM, worker="w2", started_s=3.2, ended_s=3.3)

    assert 1 == len(audit([CREATE, CLAIM, RESULT, again], FINAL).finished_twice)


def test_a_claim_answered_late_is_no_violation() -> None:
    """A claim asked before the acknowledgement may be answered after it."""
    late = replace(CLAIM, started_s=2.9, ended_s=5.0)

    assert audit([CREATE, late, RESULT], FINAL).clean


def test_a_delivery_nobody_created_is_invented() -> None:
    """An unknown key, and a known key with another payload, are both found."""
    stranger = replace(CLAIM, key="k7", task_id="t7", content='{"key":"k7"}')
    altered = replace(CLAIM, content='{"key":"k1","more":1}')

    assert 2 == len(audit([CREATE, CLAIM, RESULT, stranger, altered], FINAL).invented)


def test_one_key_with_two_tasks_is_duplicated() -> None:
    """A retried create that made a second task is found by its delivery."""
    twin = replace(CLAIM, task_id="t2")

    assert 1 == len(audit([CREATE, CLAIM, RESULT, twin], FINAL).duplicated)


def test_a_failure_of_a_surviving_node_is_a_failed_request() -> None:
    """Only calls to nodes given up are excused."""
    failure = replace(
        CREATE, outcome=RecordedOutcome.FAILED, status=503, task_id="", detail="no-leader"
    )
    excused = replace(failure, excused=True)

    verdict = audit([failure, excused, CREATE, CLAIM, RESULT], FINAL)

    assert 1 == len(verdict.failed)
    assert "no-leader" in str(verdict)


def test_the_time_to_repair_counts_only_creates_asked_after_the_fault() -> None:
    """An answer already under way when the fault struck proves no repair."""
    under_way = replace(CREATE, started_s=0.9, ended_s=1.05)
    elsewhere = replace(CREATE, started_s=1.1, ended_s=1.15, shard=0)
    first = replace(CREATE, started_s=1.2, ended_s=1.75)

    assert 0.75 == repair_seconds([under_way, elsewhere, first], struck_s=1.0, shard=2)
    assert repair_seconds([under_way], struck_s=1.0, shard=2) is None


def test_percentiles_are_by_nearest_rank() -> None:
    """For 1 to 100 they are the 51st, 91st, 100th and last value; for an empty set all are zero."""
    summary = Percentiles.of([float(n) for n in range(100, 0, -1)])

    assert Percentiles(count=100, p50=51.0, p90=91.0, p99=100.0, max=100.0) == summary
    assert 0 == Percentiles.of([]).count
