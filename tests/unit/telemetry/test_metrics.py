"""Metrics: counted by name, capped by command, read at scrape time."""

from __future__ import annotations

from codeq_cluster.telemetry import Metrics, ScrapedMetric


def lines(metrics: Metrics, prefix: str) -> list[str]:
    """Return the scraped samples whose line starts with the prefix."""
    text = metrics.scrape().decode()
    return [line for line in text.splitlines() if line.startswith(prefix)]


def test_the_references_names_are_kept() -> None:
    """Dashboards made for the reference keep working."""
    metrics = Metrics()
    metrics.task_created("a")
    metrics.task_claimed("a")
    metrics.task_completed("a", "COMPLETED", 0.3)
    metrics.lease_expired("a")

    assert ['codeq_task_created_total{command="a"} 1.0'] == lines(
        metrics, "codeq_task_created_total"
    )
    assert ['codeq_task_claimed_total{command="a"} 1.0'] == lines(
        metrics, "codeq_task_claimed_total"
    )
    assert ['codeq_task_completed_total{command="a",status="COMPLETED"} 1.0'] == lines(
        metrics, "codeq_task_completed_total"
    )
    assert ['codeq_lease_expired_total{command="a"} 1.0'] == lines(
        metrics, "codeq_lease_expired_total"
    )
    bucket = 'codeq_task_processing_latency_seconds_bucket{command="a",le="%s",status="COMPLETED"}'
    assert [bucket % "0.25" + " 0.0"] == lines(metrics, bucket % "0.25")
    assert [bucket % "0.5" + " 1.0"] == lines(metrics, bucket % "0.5")


def test_commands_beyond_the_cap_are_counted_together() -> None:
    """Producers choose the names, so they must not control the number of series."""
    metrics = Metrics(commands_max=2)

    for command in ("a", "A", "b", "c", "d"):
        metrics.task_created(command)

    assert [
        'codeq_task_created_total{command="a"} 2.0',
        'codeq_task_created_total{command="b"} 1.0',
        'codeq_task_created_total{command="other"} 2.0',
    ] == lines(metrics, "codeq_task_created_total")


def test_levels_are_read_when_they_are_scraped() -> None:
    """A gauge is as recent as the scrape; samples with a capped label are added up."""
    metrics = Metrics(commands_max=1)
    depth = {"a": 1.0}
    metrics.read_at_scrape(
        "codeq_queue_depth",
        "Tasks.",
        ("command", "queue"),
        lambda: [((command, "ready"), level) for command, level in depth.items()],
    )
    metrics.scrape()
    depth.update(a=2.0, b=3.0, c=4.0)

    assert [
        'codeq_queue_depth{command="a",queue="ready"} 2.0',
        'codeq_queue_depth{command="other",queue="ready"} 7.0',
    ] == lines(metrics, "codeq_queue_depth")


def test_limits_beyond_the_cap_are_added_up() -> None:
    """Admins of tenants choose their names; commands leave them their own labels."""
    metrics = Metrics(commands_max=1)
    metrics.task_created("a")
    metrics.read_at_scrape(
        "codeq_limit_running",
        "Tasks.",
        ("limit",),
        lambda: [((limit,), 1.0) for limit in ("stripe", "mail", "stripe", "sms")],
    )

    assert [
        'codeq_limit_running{limit="stripe"} 2.0',
        'codeq_limit_running{limit="other"} 2.0',
    ] == lines(metrics, "codeq_limit_running")


def test_two_nodes_of_one_process_count_apart() -> None:
    """Each node has its own registry, which also has the process's metrics."""
    one, other = Metrics(), Metrics()
    one.rate_limited.inc("producer", "create_task")

    assert lines(one, "codeq_rate_limit_hits_total{")
    assert not lines(other, "codeq_rate_limit_hits_total{")
    assert lines(other, "process_cpu_seconds_total")
    assert lines(other, "python_gc_collections_total")


def test_requests_are_timed_by_route_method_and_status() -> None:
    """The route is its pattern, so ids create no series."""
    metrics = Metrics()
    metrics.http.observe(0.002, "/tasks/{id}", "GET", 200)

    assert [
        'codeq_http_request_seconds_count{method="GET",route="/tasks/{id}",status="200"} 1.0'
    ] == lines(metrics, "codeq_http_request_seconds_count")


def test_metrics_of_one_source_share_one_look() -> None:
    """Several metrics of one source share its answer, each under its own labels."""
    metrics = Metrics()
    looks = 0

    def look() -> list[tuple[str, tuple[str, ...], float]]:
        nonlocal looks
        looks += 1
        return [("codeq_files", ("0", "6"), 3.0), ("codeq_flushes_total", ("0",), 2.0)]

    metrics.read_together_at_scrape(
        [
            ScrapedMetric(name="codeq_files", text="Files.", labels=("shard", "level")),
            ScrapedMetric(name="codeq_flushes_total", text="Flushes.", labels=("shard",)),
            ScrapedMetric(name="codeq_silent", text="Nothing.", labels=()),
        ],
        look,
    )
    text = metrics.scrape().decode()

    assert 1 == looks
    assert 'codeq_files{level="6",shard="0"} 3.0' in text
    assert 'codeq_flushes_total{shard="0"} 2.0' in text
    assert "# TYPE codeq_silent gauge" in text


def test_outcomes_that_are_known_begin_at_nothing() -> None:
    """The first failure then shows as an increase."""
    assert [
        'codeq_artifact_sweeps_total{outcome="success"} 0.0',
        'codeq_artifact_sweeps_total{outcome="failure"} 0.0',
    ] == lines(Metrics(), "codeq_artifact_sweeps_total")


def test_a_shards_counters_begin_at_zero() -> None:
    """A rate needs a value from before the first event."""
    metrics = Metrics()
    metrics.shard_opened(3)

    for histogram in ("entry_mutations", "commit_seconds", "fsync_seconds", "snapshot_seconds"):
        name = f"codeq_raft_{histogram}_count"
        assert [f'{name}{{shard="3"}} 0.0'] == lines(metrics, name)
    assert ['codeq_raft_leader_changes_total{shard="3"} 0.0'] == lines(
        metrics, "codeq_raft_leader_changes_total"
    )


def test_a_metric_that_cannot_be_read_hides_no_other() -> None:
    """A scrape without answer would look like a node that is down."""
    metrics = Metrics()
    metrics.read_at_scrape("codeq_broken", "Fails.", (), lambda: [((), 1 / 0)])
    metrics.read_at_scrape("codeq_whole", "Works.", (), lambda: [((), 1.0)])

    metrics.scrape()

    # The failure before this scrape is counted in it.
    name = 'codeq_item_failures_total{loop="scrape"}'
    assert [f"{name} 1.0"] == lines(metrics, name)
    assert ["codeq_whole 1.0"] == lines(metrics, "codeq_whole")
    assert [] == lines(metrics, "codeq_broken")
