"""Faults: a record is refused by its field, with what is allowed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.bounds import bounds_of
from codeq_cluster.core.dependencies import Edge, Walk
from codeq_cluster.core.durable import Signal, Step
from codeq_cluster.core.faults import fault, item_fault, new_item_fault
from codeq_cluster.core.groups import Group
from codeq_cluster.core.handling import Handling
from codeq_cluster.core.items import (
    Aside,
    Audit,
    Delivery,
    Item,
    Mode,
    Pause,
    Subscription,
    Sweep,
    Topic,
    WebhookKey,
)
from codeq_cluster.core.task import Artifact, Attempt, AttemptOutcome, Result, State, Task
from codeq_cluster.core.unique import Merged

from .test_importing import ended, made

_LONG = "x" * 5000
_ATTEMPT = Attempt(worker="w", started_ms=1, ended_ms=2, outcome=AttemptOutcome.NACKED)
_TOPIC = Topic(tenant="acme", id="render", name="Render")
_PAUSE = Pause(tenant="acme", id="scan", by="op", since_ms=1)
_SUBSCRIPTION = Subscription(
    tenant="acme",
    id="s",
    worker="w",
    callback_url="https://example.com/",
    ttl_ms=60_000,
    expires_ms=1,
)
_DELIVERY = Delivery(
    tenant="acme",
    id="t.1",
    task_id="t",
    command="c",
    url="https://example.com/",
    created_ms=1,
    due_ms=1,
)
_SWEEP = Sweep(tenant="acme", id="t.u", task_id="t", upload="u", due_ms=1)
_ASIDE = Aside(tenant="-", id="task.t", timer=b"", reason="r", since_ms=1)
_WEBHOOK_KEY = WebhookKey(tenant="acme")
_AUDIT = Audit(tenant="acme", id="1-r", at_ms=1, actor="op", action="a", target="t", expires_ms=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("id", each) for each in ("", "a.b", "a/b", "a\0", "x" * 129)),
        *(("tenant", each) for each in ("A", "a/b", "x" * 64)),
        *(("command", each) for each in ("", "no spaces", "a/b", "x" * 129, "é", ".", "..")),
        *(("priority", each) for each in (-1, 10)),
        *(("max_attempts", each) for each in (0, -1, 10**6 + 1)),
        *(("created_ms", each) for each in (-1, 10**15)),
        *(("seq", each) for each in (0, -1, 2**63)),
        ("due_ms", 1),
        ("retain_until_ms", 1),
        ("worker, claim, lease_until_ms", {"worker": "w"}),
        ("attempts", {"attempts": 5}),
        ("error", "early"),
        *(("webhook", each) for each in ("ftp://a/", "http://", "http://a b/", "http://a/\r\n")),
        *(("webhook", each) for each in ("http://u@a/", "https://a/" + _LONG, "\ud800")),
        *(("trace_parent", each) for each in ("x", f"00-{'0' * 32}-{'1' * 16}-01")),
        *(("trace_state", each) for each in ("a\r\nX-Evil: 1", "é", _LONG)),
        *(("idempotency_key", each) for each in (_LONG, "\ud800")),
        ("ended_by", "a/b"),
        ("history", (_ATTEMPT,) * 21),
        ("history: worker", (replace(_ATTEMPT, worker=_LONG),)),
        ("history: error", (replace(_ATTEMPT, error=_LONG),)),
        *(("uploads", each) for each in (("a",) * 2, ("a/b",), ("",), tuple(map(str, range(101))))),
        ("dead_queue", "x"),
        ("handling", Handling(timeout_ms=-1)),
        ("handling", Handling(backoff="slower")),
        ("worker_name", "a name"),
    ],
)
def test_a_task_that_no_route_can_make_is_refused_by_its_field(field: str, value: object) -> None:
    """An empty answer would let it in."""
    came = made()
    name = field.split(": ", maxsplit=1)[0]
    fields = value if isinstance(value, dict) else {name: value}
    why = fault(replace(came, task=replace(came.task, **fields)))

    assert "" == fault(came)
    assert why.startswith(f"{field}: must ")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("payload", {"payload": "{"}),
        ("payload", {"payload": ""}),
        ("payload", {"payload": "[" * 901 + "]" * 901}),
        ("payload", {"payload": '"\ud800"'}),
        ("result", {"result": None}),
        ("result: status", {"status": "DONE"}),
        ("result: status", {"status": "FAILED"}),
        ("result: body", {"body": ""}),
        ("result: body", {"body": "{"}),
        ("result: task_id, error", {"task_id": "u"}),
        ("result: task_id, error", {"error": "another"}),
        ("result: artifacts: url", {"artifacts": (Artifact("a", ""),)}),
        ("result: artifacts", {"artifacts": (Artifact("a", "u"),) * 101}),
        ("retain_until_ms", {"task": {"retain_until_ms": 0}}),
        ("has_result", {"task": {"has_result": False}}),
        ("retain_until_ms", {"task": {"state": State.READY, "has_result": False, "seq": 1}}),
        ("dead_queue", {"task": {"state": State.DEAD}}),
        ("dead_queue", {"task": {"state": State.DEAD, "dead_queue": "Render"}}),
        ("result: status", {"task": {"state": State.DEAD, "dead_queue": "render"}}),
        ("deliveries", {"deliveries": 21}),
        ("deliveries", {"deliveries": 2}),
        ("delivery t.1: attempts", {"delivery": {"attempts": 10**9}}),
        ("delivery t.1: url", {"delivery": {"url": "x"}}),
        ("delivery t.1: due_ms", {"delivery": {"due_ms": 0}}),
        ("delivery t.1: expires_ms", {"delivery": {"expires_ms": 1}}),
        ("delivery t.1: id", {"delivery": {"task_id": "u"}}),
        ("delivery u.1: id", {"delivery": {"id": "u.1"}}),
        ("delivery t.x: id", {"delivery": {"id": "t.x"}}),
        ("delivery t.1: trace_state", {"delivery": {"trace_state": "a\r\nb"}}),
    ],
)
def test_what_comes_with_a_task_is_refused_by_its_field(
    field: str, change: dict[str, object]
) -> None:
    """A delivery's attempts, for example, are an exponent of its next wait."""
    came = ended()
    [(delivery, body)] = came.deliveries
    assert came.result is not None
    if "delivery" in change:
        fields = change["delivery"]
        assert isinstance(fields, dict)
        bad = replace(came, deliveries=((replace(delivery, **fields), body),))
    elif "task" in change:
        fields = change["task"]
        assert isinstance(fields, dict)
        bad = replace(came, task=replace(came.task, **fields))
    elif "deliveries" in change:
        bad = replace(came, deliveries=((delivery, body),) * int(str(change["deliveries"])))
    elif set(change) <= set(Arrival.__struct_fields__):
        bad = replace(came, **change)
    else:
        bad = replace(came, result=replace(came.result, **change))

    assert "" == fault(came)
    assert fault(bad).startswith(f"{field}: must ")


@pytest.mark.parametrize(
    ("item", "field", "value"),
    [
        *((_TOPIC, "dead_letter", each) for each in ("a/b", "A", ".", "x" * 64)),
        *((_TOPIC, "id", each) for each in ("a/b", "Render", "other", "")),
        (_TOPIC, "name", "a b"),
        *((_TOPIC, "priority_tiers", each) for each in ((11,), (1, 1), tuple(range(11)))),
        *((_TOPIC, "weight", each) for each in (0, 101)),
        *((_TOPIC, "retention_s", each) for each in (-1, 2**31)),
        (_TOPIC, "max_attempts", 101),
        (_TOPIC, "max_consumers", 10_001),
        (_TOPIC, "version", 0),
        *((_PAUSE, "id", each) for each in ("a/b", "Scan", "\0")),
        (_TOPIC, "handling", Handling(backoff_max_ms=10**12)),
        (_PAUSE, "by", _LONG),
        (_ASIDE, "id", "task.a/b"),
        (_ASIDE, "tenant", "a/b"),
        (_ASIDE, "reason", _LONG),
        (_WEBHOOK_KEY, "id", "another"),
        (_WEBHOOK_KEY, "version", 0),
        (_PAUSE, "since_ms", -1),
        (_SUBSCRIPTION, "id", "a/b"),
        (_SUBSCRIPTION, "callback_url", "file:///etc/passwd"),
        (_SUBSCRIPTION, "event_types", tuple(map(str, range(101)))),
        (_SUBSCRIPTION, "event_types", ("a/b",)),
        (_SUBSCRIPTION, "group_id", "x" * 257),
        (_SUBSCRIPTION, "group_id", {"mode": Mode.GROUP}),
        *((_SUBSCRIPTION, "ttl_ms", each) for each in (0, 86_400_001)),
        (_SUBSCRIPTION, "min_interval_ms", 86_400_001),
        (_SUBSCRIPTION, "expires_ms", 0),
        (_SUBSCRIPTION, "worker", ""),
        (_SWEEP, "id", "t.v"),
        (_SWEEP, "upload", "../x"),
        (_AUDIT, "id", "a/b"),
        (_AUDIT, "target", _LONG),
        (_AUDIT, "expires_ms", 0),
    ],
)
def test_an_item_that_no_route_can_make_is_refused_by_its_field(
    item: Item, field: str, value: object
) -> None:
    """The decisions of a shard rely on each of these."""
    fields = value if isinstance(value, dict) else {field: value}

    assert "" == item_fault(item)
    assert item_fault(replace(item, **fields)).startswith(f"{field}: must ")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_queue_that_no_path_can_name_stays_but_is_not_made(name: str) -> None:
    """A restore keeps one that exists; an import is as a creation."""
    topic = replace(_TOPIC, id=name, name=name)

    assert "" == item_fault(topic)
    assert new_item_fault(topic).startswith("name: must ")
    assert new_item_fault(replace(_TOPIC, dead_letter="render")).startswith("dead_letter: must ")


def test_every_type_of_record_bounds_each_of_its_fields() -> None:
    """Flags and enumerations are bounded by their types; a list also has a length in its type."""
    kinds = (*Item.__args__, Result, Artifact, Attempt, Task)
    unbounded = [
        (kind, name)
        for kind in kinds
        for name in kind.__struct_fields__
        if name not in bounds_of(kind)
    ]
    lists = [
        (kind, name)
        for kind in kinds
        for name, hint in kind.__annotations__.items()
        if "tuple" in hint and "max_length" not in hint
    ]

    assert [
        (Subscription, "mode"),
        (Group, "then_if"),
        (Group, "on_failure"),
        (Edge, "done"),
        (Walk, "gone"),
        (Merged, "how"),
        (Step, "is_open"),
        (Signal, "is_read"),
        (Attempt, "outcome"),
        (Task, "state"),
        (Task, "has_result"),
    ] == unbounded
    assert [] == lists
