"""Webhooks: deliveries, and whether receivers take them."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board
from deploy.grafana.boards.terms import growth, of, rate, total

_MINE = {"command": "$command"}
_METRIC = "codeq_webhook_deliveries_total"


def webhooks() -> Board:
    """Return the board of callbacks, notices and artifacts."""
    board = Board("webhooks", "Webhooks", "Do receivers take what they are sent?")
    board.choose("command", "Queue", _METRIC)
    failed = rate(_METRIC, "command", outcome="failure", **_MINE)
    board.row("Attempts")
    board.graph(
        "In a second, by kind and outcome",
        (rate(_METRIC, "kind, outcome", **_MINE), "{{kind}} {{outcome}}"),
        unit="ops",
        stacked=True,
        width=12,
    )
    board.graph(
        "In vain, of all attempts",
        (
            f"{failed} / {rate(_METRIC, 'command', **_MINE)}",
            "{{command}}",
        ),
        unit="percentunit",
        most=1,
        about="Callbacks are tried again, and are dead deliveries at last; notices are not.",
        width=12,
    )
    board.graph(
        "Taken in a second, by queue",
        (rate(_METRIC, "command", outcome="success", **_MINE), "{{command}}"),
        unit="ops",
    )
    board.graph(
        "Failed in a second, by queue",
        (failed, "{{command}}"),
        unit="ops",
    )
    board.graph(
        "Put off or dropped for a rate limit",
        (
            f"{growth('codeq_rate_limit_hits_total', 'operation', scope='webhook')} or vector(0)",
            "{{operation}}",
        ),
    )

    board.row("Receivers and artifacts")
    board.graph(
        "Subscriptions",
        (total(of("codeq_subscriptions_active"), "command"), "{{command}}"),
        about="`*` are those that name no queue.",
        width=12,
    )
    board.graph(
        "Artifacts deleted",
        (growth("codeq_artifact_sweeps_total", "outcome"), "{{outcome}}"),
        about="A failed deletion is tried again.",
        width=12,
    )
    return board
