"""Access log: a line per request at the configured level, and few lines about strangers."""

from __future__ import annotations

import logging

import pytest

from codeq_cluster.api.http.access_log import REFUSALS_TOLD, STRETCH_S, AccessLog
from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.whole_requests import Whole
from codeq_cluster.settings import ProxySettings

CALLERS = Callers(ProxySettings(trusted=("10.0.0.0/8",)))
ASKED = Whole({"x-forwarded-for": "203.0.113.5"}, {}, b"")
ASKED.remote = "10.0.0.1"
NAME = "codeq_cluster.api.http.access_log"


def answer(log: AccessLog) -> None:
    """Log one request."""
    log.answered(ASKED, "r", route="/x/{id}", status=200, seconds=0.5, tenant="acme")


@pytest.mark.parametrize(
    ("severity", "level", "told"),
    [
        ("never", logging.DEBUG, []),
        ("debug", logging.INFO, []),
        ("debug", logging.DEBUG, ["DEBUG"]),
        ("info", logging.INFO, ["INFO"]),
        ("info", logging.WARNING, []),
    ],
)
def test_a_request_leaves_a_line_at_the_severity_asked_for(
    severity: str, level: int, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The log's level applies as to any other line."""
    with caplog.at_level(level, NAME):
        answer(AccessLog(severity, CALLERS))

    assert told == [record.levelname for record in caplog.records]
    assert {"203.0.113.5"} >= {vars(record)["caller"] for record in caplog.records}


def test_of_many_refusals_few_are_logged_and_the_others_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stranger cannot fill the disk; the next period's first line counts the suppressed ones."""
    now_s = 0.0
    log = AccessLog("debug", CALLERS, monotonic=lambda: now_s)

    with caplog.at_level(logging.INFO, NAME):
        for _ in range(REFUSALS_TOLD + 90):
            log.refused(ASKED, "r", route="/x", status=401, reason="no such static token")
        now_s = STRETCH_S
        log.refused(ASKED, "last", route="/x", status=401, reason="expired")

    fields = [vars(record) for record in caplog.records]
    assert REFUSALS_TOLD + 1 == len(fields)
    assert [0] * REFUSALS_TOLD + [90] == [each["untold_before"] for each in fields]
    assert {"203.0.113.5"} == {each["caller"] for each in fields}
    assert ("last", "expired") == (fields[-1]["request_id"], fields[-1]["reason"])
