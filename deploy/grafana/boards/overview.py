"""Overview: the health of the cluster on one screen."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board
from deploy.grafana.boards.terms import STEP, most, of, quantile, rate, total

_API = {"route": "/v1/.*"}
# Routes whose duration is the broker's own. Claims and reads are left out: they wait as long as
# callers ask.
_PROMPT = {"route": "/v1/codeq/tasks(/batch|/[{]id[}]/result)?", "method": "POST"}


def overview() -> Board:
    """Return the board that a reader opens first."""
    board = Board("overview", "Overview", "Is the cluster well, and how much does it do?")
    up = of("up")
    leaders = most(of("codeq_raft_is_leader"), "shard")
    board.row("Now")
    board.number("Nodes down", f"count({up} == 0) or vector(0)", bad_from=1)
    board.number("Shards without a leader", f"count({leaders} == 0) or vector(0)", bad_from=1)
    board.number("Replicas out", f"sum({of('codeq_replica_out')}) or vector(0)", bad_from=1)
    board.number(
        "Failed requests",
        f"{rate('codeq_http_request_seconds_count', **_API, status='5..')} "
        f"/ {rate('codeq_http_request_seconds_count', **_API)} or vector(0)",
        unit="percentunit",
        bad_from=0.01,
        about="Of the requests to the API, those answered with 500 or above.",
    )
    board.number("Tasks created", rate("codeq_task_created_total"), unit="ops")
    board.number("Ready tasks", total(of("codeq_queue_depth", queue="ready")))
    board.number("In progress", total(of("codeq_queue_depth", queue="in_progress")))
    board.number("Dead letters", total(of("codeq_queue_depth", queue="dlq")), bad_from=1)

    board.row("Tasks")
    board.graph(
        "Tasks in a second",
        (rate("codeq_task_created_total"), "created"),
        (rate("codeq_task_claimed_total"), "claimed"),
        (rate("codeq_task_completed_total", "status"), "{{status}}"),
        unit="ops",
    )
    board.graph(
        "Tasks by state", (total(of("codeq_queue_depth"), "queue"), "{{queue}}"), stacked=True
    )
    board.graph(
        "From creation to end",
        (quantile(0.5, "codeq_task_processing_latency_seconds"), "half"),
        (quantile(0.99, "codeq_task_processing_latency_seconds"), "99 of 100"),
        unit="s",
        about="Of the tasks that ended, those up to this time.",
    )

    board.row("Requests and writes")
    board.graph(
        "Requests in a second, by status",
        (rate("codeq_http_request_seconds_count", "status", **_API), "{{status}}"),
        unit="reqps",
        stacked=True,
    )
    board.graph(
        "Time of creates and results",
        (quantile(0.5, "codeq_http_request_seconds", **_PROMPT), "half"),
        (quantile(0.99, "codeq_http_request_seconds", **_PROMPT), "99 of 100"),
        unit="s",
    )
    board.graph(
        "Time until a majority has a write",
        (quantile(0.5, "codeq_raft_commit_seconds"), "half"),
        (quantile(0.99, "codeq_raft_commit_seconds"), "99 of 100"),
        (quantile(0.99, "codeq_raft_fsync_seconds", "instance"), "disk of {{instance}}, 99 of 100"),
        unit="s",
    )

    board.row("Nodes")
    board.graph(
        "Processor",
        (f"rate({of('process_cpu_seconds_total')}[{STEP}])", "{{instance}}"),
        unit="percentunit",
        about="Of one core; a node uses one, and little beyond.",
    )
    board.graph("Memory", (of("process_resident_memory_bytes"), "{{instance}}"), unit="bytes")
    board.graph(
        "Free disk",
        (f"{of('codeq_disk_free_bytes')} / {of('codeq_disk_size_bytes')}", "{{instance}}"),
        unit="percentunit",
        most=1,
    )
    board.rows(
        "Alerts",
        of("ALERTS", alertname="Codeq.*", alertstate="firing"),
        about="Those of deploy/prometheus that fire now; empty when all is well.",
    )
    return board
