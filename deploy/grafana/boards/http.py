"""HTTP: rates, times and failures of requests, by route."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board
from deploy.grafana.boards.terms import growth, of, quantile, rate

_MINE = {"instance": "$instance", "route": "$route"}


def http() -> Board:
    """Return the board of the requests."""
    count = "codeq_http_request_seconds_count"
    each = "{{method}} {{route}}"
    board = Board("http", "HTTP", "What do callers ask, how long does it take, what fails?")
    board.choose("instance", "Node", count)
    board.choose("route", "Route", count)
    board.row("Requests")
    board.graph(
        "In a second, by route",
        (rate(count, "method, route", **_MINE), each),
        unit="reqps",
        width=12,
    )
    board.graph(
        "In a second, by status",
        (rate(count, "status", **_MINE), "{{status}}"),
        unit="reqps",
        stacked=True,
        width=6,
    )
    board.graph(
        "In a second, by node",
        (rate(count, "instance", **_MINE), "{{instance}}"),
        unit="reqps",
        width=6,
    )

    board.row("Time")
    about = "Claims and reads that wait include their wait."
    board.graph(
        "Half of the requests take at most",
        (
            quantile(0.5, "codeq_http_request_seconds", "method, route", **_MINE),
            each,
        ),
        unit="s",
        about=about,
        width=12,
    )
    board.graph(
        "99 of 100 requests take at most",
        (
            quantile(0.99, "codeq_http_request_seconds", "method, route", **_MINE),
            each,
        ),
        unit="s",
        about=about,
        width=12,
    )

    board.row("Refused and failed")
    board.graph(
        "Refused in a second (4xx)",
        (rate(count, "route, status", status="4..", **_MINE), "{{status}} {{route}}"),
        unit="reqps",
    )
    board.graph(
        "Failed in a second (5xx)",
        (
            f"{rate(count, 'route, status', status='5..', **_MINE)} or vector(0)",
            "{{status}} {{route}}",
        ),
        unit="reqps",
    )
    board.graph(
        "Over a rate limit",
        (growth("codeq_rate_limit_hits_total", "scope, operation"), "{{scope}} {{operation}}"),
    )
    board.graph(
        "In progress, and waiting for their tenant's turn",
        (of("codeq_http_in_progress", instance="$instance"), "in progress {{instance}}"),
        (of("codeq_http_waiting_for_turn", instance="$instance"), "waiting {{instance}}"),
    )
    board.graph(
        "TLS handshakes that failed",
        (
            growth("codeq_http_failed_handshakes_total", "instance", instance="$instance"),
            "{{instance}}",
        ),
    )
    board.graph(
        "Until the certificates end",
        (of("codeq_tls_certificate_expiry_seconds", instance="$instance"), "{{use}} {{instance}}"),
        unit="s",
    )
    board.graph(
        "Certificates that could not be loaded",
        (of("codeq_tls_certificate_stale", instance="$instance"), "{{use}} {{instance}}"),
    )
    return board
