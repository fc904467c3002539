"""The groups under seeded faults: no acknowledged entry is lost, none is applied twice."""

from __future__ import annotations

import os

import pytest

from codeq_cluster.raft.safety_switches import SafetySwitches
from tests.simulator.groups import simulate

# Each seed takes about a second; CODEQ_SIMULATION_SEEDS=2000 takes about half an hour.
_SEEDS = int(os.environ.get("CODEQ_SIMULATION_SEEDS", "10"))


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_no_seed_breaks_a_promise(seed: int) -> None:
    """A term has one leader, all logs agree, no acknowledged value is lost, and groups recover."""
    report = simulate(seed)

    assert "" == report.violation, f"seed {seed}: {report.options}"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(910_038, id="a wrong leader judges a state that was replaced"),
        pytest.param(910_198, id="a disk is lost beside a learner whose promotion is uncommitted"),
    ],
)
def test_a_seed_that_broke_a_promise_keeps_it(seed: int) -> None:
    """Each of these seeds once found a fault of the product or of the simulator."""
    report = simulate(seed)

    assert "" == report.violation, f"seed {seed}: {report.options}"


def test_a_seed_runs_the_same_way_twice() -> None:
    """Every choice comes from the seed, so a failure can be replayed."""
    assert simulate(3).digest == simulate(3).digest


@pytest.mark.parametrize(
    "rules",
    [
        SafetySwitches(clamp_commit=False),
        SafetySwitches(hold_promises=False),
        SafetySwitches(fresh_only=False, skip_what_we_have=False),
    ],
    ids=["clamp_commit", "hold_promises", "fresh_only and skip_what_we_have"],
)
def test_a_rule_switched_off_is_noticed(rules: SafetySwitches) -> None:
    """One of the first seeds finds the fault that the rule prevents."""
    assert any(simulate(seed, rules=rules).violation for seed in range(20))
