"""Faults: partitions have the shape they are named for, and demands can be met."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.core.sharding import shard_of
from jepsen_lite.checker.judging import PROMISES
from jepsen_lite.cli import DEFAULT_MIX
from jepsen_lite.drawing import _FAULTS
from jepsen_lite.fault_schedule import KINDS, has_effect
from jepsen_lite.history import F
from jepsen_lite.mixes import WORKLOADS
from jepsen_lite.nemesis import cuts
from jepsen_lite.running import Options, demands
from jepsen_lite.workload import key_on, shard_of_key

NODES = ["n1", "n2", "n3", "n4", "n5"]


def heard(shape: str, nodes: list[str], seed: int) -> dict[str, set[str]]:
    """Return the nodes that each node hears, itself included."""
    rules = cuts(shape, nodes, nodes[0], random.Random(seed))
    return {node: {other for other in nodes if (other, node) not in rules} for node in nodes}


@given(st.sampled_from((3, 5)), st.integers())
def test_in_a_ring_everybody_hears_another_majority(count: int, seed: int) -> None:
    """No node is alone, and no two nodes hear the same set."""
    nodes = NODES[:count]
    circles = heard("ring", nodes, seed)

    assert {count // 2 + 1} == {len(circle) for circle in circles.values()}
    assert count == len({frozenset(circle) for circle in circles.values()})
    assert all(node in circle for node, circle in circles.items())


@given(st.integers())
def test_halves_do_not_hear_each_other(seed: int) -> None:
    """There are two groups, and each hears only itself."""
    circles = {frozenset(circle) for circle in heard("halves", NODES, seed).values()}

    assert [2, 3] == sorted(map(len, circles))


def test_a_bridge_hears_everybody() -> None:
    """The nodes on either side hear their own side and the bridge."""
    circles = heard("bridge", NODES, 1)

    assert set(NODES) == circles["n1"]
    assert {3} == {len(circle) for node, circle in circles.items() if node != "n1"}


@pytest.mark.parametrize(
    ("shape", "hears", "is_heard"), [("isolate", 1, 1), ("deaf", 1, 5), ("mute", 5, 1)]
)
def test_a_lonely_node_hears_or_is_heard_or_neither(shape: str, hears: int, is_heard: int) -> None:
    """A one-way partition leaves the other direction open."""
    circles = heard(shape, NODES, 1)

    assert hears == len(circles["n1"])
    assert is_heard == sum("n1" in circle for circle in circles.values())


@given(st.text(min_size=1), st.integers(1, 16))
def test_keys_are_expected_where_the_broker_puts_them(key: str, shards: int) -> None:
    """The harness and the broker agree on a key's shard; otherwise a wrong one would be judged."""
    assert shard_of(f"/{key}", shards) == shard_of_key(key, shards)


@given(st.text(alphabet="probe-./0123456789", max_size=20), st.integers(1, 8), st.data())
def test_every_shard_has_a_key_of_every_stem(stem: str, shards: int, data: st.DataObject) -> None:
    """A key for every shard is found soon, since every further number changes the hash."""
    shard = data.draw(st.integers(0, shards - 1))
    key = key_on(shard, stem, shards)

    assert shard == shard_of_key(key, shards)
    assert int(key.rpartition("/")[2]) < 1000


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"idle"}))
def test_every_kind_of_fault_has_a_workload_that_it_strikes(name: str) -> None:
    """The matrix would silently leave out a kind of fault without a workload."""
    assert any(has_effect(name, mix) for mix in WORKLOADS.values())


def test_every_fault_has_a_colour() -> None:
    """A report that shades two kinds alike would not show which one struck."""
    assert set(KINDS) - {"idle"} == set(_FAULTS)
    assert len(_FAULTS) == len(set(_FAULTS.values()))


def test_the_design_s_twelve_workloads_are_there() -> None:
    """Soak and matrix run all these workloads."""
    assert {
        *("total-queue", "lease", "idempotent", "order", "delay", "register", "heartbeats"),
        *("dead-letters", "webhooks", "membership", "recovery", "big-state", "follow-ups"),
        *("schedules", "lanes", "groups", "graphs", "steps", "unique", "limits"),
        *("bulk", "graces", "events"),
    } <= set(WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_demands_only_known_guarantees_and_kinds(name: str, options: Options) -> None:
    """The guarantees and kinds of operations it demands exist, at least one of each."""
    asked = demands(replace(options, workload=name, nemeses=DEFAULT_MIX))

    assert set(asked.proves) <= set(PROMISES)
    assert set(asked.ok) <= set(F)
    assert all(least > 0 for least in asked.ok.values())
    assert set(asked.faults) == set(DEFAULT_MIX) <= set(KINDS)
    assert all(least > 0 for least in asked.faults.values())
    assert asked.leader_changes


def test_a_long_run_demands_one_corruption_since_the_node_may_stay_out(options: Options) -> None:
    """A node that refuses to serve its damaged data leaves no minority to damage again."""
    asked = demands(replace(options, nemeses=("corrupt", "partition"), seconds=600))

    assert 1 == asked.faults["corrupt"]
    assert asked.faults["partition"] > 10
