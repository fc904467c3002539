"""Queues: waiting, running, finished and dead tasks, by command."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board
from deploy.grafana.boards.terms import growth, mean, of, quantile, rate, total

_MINE = {"command": "$command"}
_PLACES = {
    "ready": "Ready",
    "in_progress": "In progress",
    "delayed": "Delayed",
    "dlq": "Dead letters",
    "held": "Held by their keys",
}
_OLDEST_HELD = of("codeq_queue_oldest_held_seconds", **_MINE)


def queues() -> Board:
    """Return the board of the queues."""
    board = Board("queues", "Queues", "What waits, what is worked on, and what dies?")
    board.choose("command", "Queue", "codeq_task_created_total")
    board.row("How full")
    for place, title in _PLACES.items():
        depth = of("codeq_queue_depth", queue=place, **_MINE)
        board.graph(title, (total(depth, "command"), "{{command}}"), width=6)

    board.row("How fast")
    board.graph(
        "Created in a second",
        (rate("codeq_task_created_total", "command", **_MINE), "{{command}}"),
        unit="ops",
    )
    board.graph(
        "Claimed in a second",
        (rate("codeq_task_claimed_total", "command", **_MINE), "{{command}}"),
        unit="ops",
    )
    board.graph(
        "Fired by schedules in a second",
        (rate("codeq_schedule_fired_total"), "instants"),
        unit="ops",
        about="Of all queues.",
    )
    board.graph(
        "Ended in a second",
        (rate("codeq_task_completed_total", "command, status", **_MINE), "{{command}} {{status}}"),
        unit="ops",
    )
    ready = total(of("codeq_queue_depth", queue="ready", **_MINE), "command")
    board.graph(
        "Until the ready tasks are claimed",
        (f"{ready} / {rate('codeq_task_claimed_total', 'command', **_MINE)}", "{{command}}"),
        unit="s",
        about="At the pace of the workers now, if nothing more were created.",
    )
    board.graph(
        "From creation to end",
        (quantile(0.5, "codeq_task_processing_latency_seconds", "command", **_MINE), "{{command}}"),
        (
            quantile(0.99, "codeq_task_processing_latency_seconds", "command", **_MINE),
            "{{command}}, 99 of 100",
        ),
        unit="s",
    )
    board.graph(
        "From creation to end, mean by outcome",
        (
            mean("codeq_task_processing_latency_seconds", "command, status", **_MINE),
            "{{command}} {{status}}",
        ),
        unit="s",
    )

    board.graph(
        "Groups begun and ended in a second",
        (rate("codeq_group_begun_total"), "begun"),
        (rate("codeq_group_ended_total", "status"), "{{status}}"),
        unit="ops",
        about="Of all queues.",
    )
    board.graph(
        "Members of groups that ended in a second",
        (rate("codeq_group_members_ended_total", "status"), "{{status}}"),
        unit="ops",
        about="Of all queues.",
    )

    board.graph(
        "Tasks that wait for others, in a second",
        (rate("codeq_dependent_begun_total"), "begun"),
        (rate("codeq_dependent_ended_total", "outcome"), "{{outcome}}"),
        (rate("codeq_dependent_held_total"), "held by a dead letter"),
        unit="ops",
        about="Of all queues.",
    )
    board.graph(
        "Tasks changed by bulk jobs in a second",
        (rate("codeq_bulk_tasks_changed_total", "action"), "{{action}}"),
        unit="ops",
        about="Of all queues.",
    )
    board.graph(
        "Bulk jobs that go on",
        (f"max({of('codeq_bulk_parts_running')})", "on the shard with most of them"),
        (growth("codeq_bulk_parts_ended_total", "status"), "parts {{status}}"),
        about="A job has a part on each shard.",
    )
    board.graph(
        "Creates with a unique key in a second",
        (rate("codeq_unique_creates_total", "outcome"), "{{outcome}}"),
        unit="ops",
        about="Of all queues, by what they did.",
    )

    board.graph(
        "In progress under limits that queues share",
        (total(of("codeq_limit_running"), "limit"), "{{limit}}"),
        (total(of("codeq_limit_running_max"), "limit"), "{{limit}}, at most"),
        about="Of all queues that share each limit.",
    )
    board.graph(
        "Ready tasks that wait for a limit",
        (total(of("codeq_limit_waiting"), "limit, reason"), "{{limit}} {{reason}}"),
        about="No place is free, no token has come, or a worker holds it. Of all queues.",
    )

    board.row("Trouble")
    board.graph(
        "How long the first task is held by its key",
        (f"max by (command) ({_OLDEST_HELD})", "{{command}}"),
        unit="s",
        about="A dead letter, slow tasks or a low rate: its first task's reason says which.",
    )
    board.graph(
        "Leases that ended without a result",
        (growth("codeq_lease_expired_total", "command", **_MINE), "{{command}}"),
        about="A worker died, or worked for longer than it leased.",
    )
    board.graph(
        "Requests over a rate limit",
        (growth("codeq_rate_limit_hits_total", "scope, operation"), "{{scope}} {{operation}}"),
        about="Answered 429, or put off where they are webhooks. Of all queues.",
    )
    board.graph(
        "Instants of schedules that did not fire",
        (growth("codeq_schedule_missed_total", "schedule"), "{{schedule}}"),
        about="Late by more than the schedule allows. Of all queues.",
    )
    board.graph(
        "Until a schedule's run is there",
        (quantile(0.5, "codeq_schedule_lag_seconds"), "half of them"),
        (quantile(0.99, "codeq_schedule_lag_seconds"), "99 of 100"),
        unit="s",
        about="From when it was due. Of all queues.",
    )
    board.graph(
        "Follow-ups on their way to another shard",
        (total(of("codeq_relays_waiting"), "shard"), "from shard {{shard}}"),
        about="They take milliseconds, unless the other shard takes nothing. Of all queues.",
    )
    return board
