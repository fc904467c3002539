"""The broker in simulation: seeds that must find nothing, and flaws that they must find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codeq_cluster.raft.safety_switches import SafetySwitches
from jepsen_lite.checker.judging import PROMISES
from jepsen_lite.cli import main
from jepsen_lite.history import F, load
from jepsen_lite.hunting import hunt_simulated
from jepsen_lite.mutants import mutants
from jepsen_lite.operations import History
from jepsen_lite.running import HOME
from jepsen_lite.sim_faults import LATER, draw_workload
from jepsen_lite.simulation import Report, simulate

# Each seed takes one to three seconds; JEPSEN_SIMULATION_SEEDS=2000 fills a night.
SEEDS = int(os.environ.get("JEPSEN_SIMULATION_SEEDS", "6"))
_JUDGED = {f"G{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 17, 20, 22)}
_PHASES = ["setup", "main", "heal", "converged", "drained", "final", "end"]
# A fast seed, for tests that repeat a run.
_SEED = 1


def _keeps(workload: str, *, seed: int = _SEED, **more_than: int) -> Report:
    """Run a workload; each of these guarantees is judged more than so often, and is kept."""
    report = simulate(seed, workload=workload)
    found = {each.guarantee: each for each in report.verdicts}

    assert () == report.broken
    for guarantee, least in more_than.items():
        assert found[guarantee].valid is True, guarantee
        assert found[guarantee].checked > least, guarantee
    return report


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    """Run the seeds once, for all tests of one process."""
    return [simulate(seed) for seed in range(1, SEEDS + 1)]


def test_no_seed_breaks_a_promise(reports: list[Report]) -> None:
    """Every invariant holds throughout, and no checker objects to the clients' history."""
    assert {} == {each.seed: each.broken for each in reports if each.broken}


def test_the_seeds_together_judge_every_listed_promise(reports: list[Report]) -> None:
    """Each of these promises was judged by at least one seed; an unjudged one proves nothing."""
    judged = {
        verdict.guarantee for each in reports for verdict in each.verdicts if verdict.valid is True
    }

    assert judged <= PROMISES.keys()
    assert _JUDGED <= judged


def test_the_seeds_together_inject_faults(reports: list[Report]) -> None:
    """Deaths, partitions and full disks happen, and most operations succeed."""
    counted = {
        name: sum(each.counters.get(name, 0) for each in reports)
        for name in ("kill", "power", "partition", "disk-full", "operations", "acknowledged")
    }

    assert min(counted.values()) > 0
    assert counted["acknowledged"] > counted["operations"] / 2


def test_a_seed_runs_the_same_way_in_every_process(tmp_path: Path) -> None:
    """A seed repeats its run to the last event, however the process orders its sets."""
    report = simulate(_SEED, path=tmp_path / "here")
    code = (
        "import sys; from pathlib import Path; from jepsen_lite.simulation import simulate;"
        "simulate(int(sys.argv[1]), path=Path(sys.argv[2]))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    there = tmp_path / "there"
    command = [sys.executable, "-c", code, str(_SEED), str(there)]
    subprocess.run(command, env=environment, check=True)

    assert (tmp_path / "here").read_bytes() == there.read_bytes()
    history = History(load(there))
    assert report.counters["operations"] == len(history.ops)
    assert _PHASES == list(history.phases)
    assert {F.CREATE, F.CLAIM, F.RESULT} <= {f for f, ops in history.by_f.items() if ops}
    assert all(fault.ended_ns <= history.end_ns for fault in history.faults)


def test_results_make_exactly_what_follows_them() -> None:
    """Chains of follow-ups, on both shards, under faults: G25, and the invariants of relays."""
    report = simulate(_SEED, workload="follow-ups")
    [verdict] = [each for each in report.verdicts if each.guarantee == "G25"]

    assert () == report.broken
    assert verdict.valid is True
    assert report.counters["relays"] > 20


def test_schedules_fire_each_instant_once() -> None:
    """Schedules of every overlap under faults: G23, G24, and the invariants of schedules."""
    report = simulate(_SEED, workload="schedules")
    judged = {each.guarantee: each.valid for each in report.verdicts}

    assert () == report.broken
    assert (True, True) == (judged["G23"], judged["G24"])


def test_the_tasks_of_a_key_go_one_after_the_other() -> None:
    """Workers lose leases and hold keys, admins pause them, leaders die: G28 to G30."""
    report = simulate(_SEED, workload="lanes")
    found = {each.guarantee: each.valid for each in report.verdicts}

    assert () == report.broken
    assert found["G28"] is found["G29"] is found["G30"] is True


def test_a_queue_with_limits_keeps_them() -> None:
    """Leases are lost and leaders die: G28 and G30 of all its tasks together."""
    _keeps("limits", G28=0, G30=40)


def test_queues_that_share_a_limit_keep_it_together() -> None:
    """Leases are lost and leaders die: G28 and G30 of the tasks of both."""
    _keeps("quotas", G28=0, G30=40)


def test_a_bulk_job_touches_exactly_its_selection() -> None:
    """Leaders die between its steps, and creates come before, during and after it: G39."""
    _keeps("bulk", G39=60)


def test_a_cancel_with_a_grace_is_heard_and_ends_its_task() -> None:
    """Leaders die within graces, and workers heed them or not: G36."""
    _keeps("graces", G36=40)


def test_a_rejected_task_is_dead_and_a_log_keeps_its_lines() -> None:
    """Workers reject and write logs, an operator requeues, leaders die: G40 and G41."""
    _keeps("heartbeats", G40=40, G41=10)


def test_a_watcher_of_events_misses_none() -> None:
    """It asks another node each time, while leaders die: G35."""
    _keeps("events", seed=5, G35=1000)


def test_a_group_has_one_completion_task_with_true_counts() -> None:
    """Members on every shard, of which some are lost and some die: G27, and the invariant."""
    _keeps("groups", G27=40)


def test_a_task_starts_when_those_that_it_waits_for_have_ended() -> None:
    """Graphs on every shard, of which tasks fail, die, live again or are deleted: G26."""
    assert _keeps("graphs", G26=60).counters["relays"] > 10


def test_a_recorded_step_stays_and_a_wait_ends_by_its_cause() -> None:
    """Workers lose orders between steps, and leaders die between signals: G37, G38."""
    _keeps("steps", G37=60, G38=40)


def test_a_unique_key_has_one_task_with_what_was_said_last() -> None:
    """Leaders die between creates, and workers lose tasks: G32 to G34, and the invariants."""
    _keeps("unique", seed=2, G32=30, G33=30, G34=10)


def test_a_workload_that_came_later_leaves_other_seeds_alone() -> None:
    """Seeds that found something keep their runs, and some seeds play the new workload."""
    later = [seed for seed in range(100) if draw_workload(seed)]

    assert 2 not in later
    assert 0 < len(later) < 75
    assert set(LATER) == {draw_workload(seed) for seed in later}


def test_a_rule_of_the_guard_switched_off_is_noticed() -> None:
    """Without the rule, a node sends a message before the vote or entry behind it is on disk."""
    reports = (simulate(seed, guard=SafetySwitches(hold_promises=False)) for seed in range(40))

    assert any(report.broken for report in reports)


def test_a_mutant_is_noticed() -> None:
    """The simulation notices within seconds a mutant that real nodes need a minute for."""
    [mutant] = mutants(["M03"])
    found = hunt_simulated(mutant, source=HOME.parent, seed=0, budget_s=120)

    assert found.caught
    assert mutant.breaks in found.violated


def test_a_mutant_of_parts_that_are_not_simulated_is_refused() -> None:
    """A simulation cannot show such a mutant, so finding nothing would prove nothing."""
    [mutant] = mutants(["M02"])

    with pytest.raises(ValueError, match="storage"):
        hunt_simulated(mutant, source=HOME.parent, seed=0, budget_s=1)


def test_the_command_tells_of_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints seeds, digests and counts; with a trace, every fault."""
    assert 0 == main(["sim", "--seed", str(_SEED), "--seeds", "1", "--trace"])

    told = capsys.readouterr().out
    assert f"seed {_SEED}: ok" in told
    assert "0 of 1 seeds failed" in told
    assert "heal" in told


def test_a_trace_is_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """A trace of several seeds is refused before anything runs."""
    assert 3 == main(["sim", "--seeds", "2", "--trace"])
    assert "--seeds 1" in capsys.readouterr().err
