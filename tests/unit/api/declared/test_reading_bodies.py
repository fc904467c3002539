"""Schemas: the bodies that are accepted, and those that are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from codeq_cluster.api.app import ROUTES
from codeq_cluster.api.declared import bodies as reading
from codeq_cluster.api.declared.bodies import Schema
from codeq_cluster.api.http.errors import ApiError, invalid_body
from codeq_cluster.api.routes import task_bodies
from codeq_cluster.api.routes.graph_calls import INVALID_DEPENDENCY, read_depends_on
from codeq_cluster.core.bounds import depth
from codeq_cluster.core.dependencies import NEEDS_MAX


def task(text: str) -> task_bodies.TaskBody:
    """Read a body that creates a task."""
    return task_bodies.TASK_SCHEMA.decode(text)


@pytest.mark.parametrize(
    "payload",
    ["0", "-0", "12345678901234567890123", "1e400", '"x"', "[]", '{"b":1, "a" : [2]}', "false"],
)
def test_a_payload_is_kept_as_it_was_sent(payload: str) -> None:
    """No number is rounded, no key moved, no space lost."""
    body = task(f'{{"command":"a","payload":  {payload}\n}}')

    assert payload == reading.json_text(body.payload, "payload", depth_max=10, error="")


@pytest.mark.parametrize("text", ['{"payload":null}', "{}", '{"PAYLOAD":null,"x":1}'])
def test_null_is_the_same_as_absent(text: str) -> None:
    """Payloads are treated like every other field."""
    assert "" == reading.json_text(task(text).payload, "payload", depth_max=10, error="")


def test_field_names_match_in_any_case_and_unknown_ones_are_ignored() -> None:
    """The reference's decoder does the same."""
    body = task('{"COMMAND":"a","PayLoad":{"Kept":1},"maxattempts":3,"workerId":{"a":[]}}')

    assert ("a", 3) == (body.command, body.max_attempts)
    assert b'{"Kept":1}' == bytes(body.payload)


def test_fields_and_dependencies_have_a_bound_before_each_is_looked_at() -> None:
    """A body of the largest size has a hundred thousand of them."""

    class Untouched(list[Raw]):
        """Items that nobody may read."""

        def __iter__(self) -> Iterator[Raw]:
            """Refuse."""
            raise AssertionError("an item is read")

    fields = ",".join(f'"{n}":1' for n in range(999))
    body = task(f'{{{fields},"command":"a"}}')
    with pytest.raises(ApiError) as refused:
        task(f'{{{fields},"command":"a","more":1}}')
    with pytest.raises(ApiError) as too_many:
        read_depends_on(Untouched([Raw(b"1")] * (NEEDS_MAX + 1)), {})

    assert "a" == body.command
    assert "more than 1000 fields" == refused.value.extra["detail"]
    assert INVALID_DEPENDENCY == too_many.value


def test_the_last_of_duplicated_fields_wins() -> None:
    """The rule holds for equal names and for names that differ in case."""
    exact = task('{"command":"a","command":"b"}')
    folded = task('{"command":"a","Command":"b"}')

    assert ("b", "b") == (exact.command, folded.command)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "null",
        "[]",
        "1",
        '"x"',
        "{",
        "{} x",
        "{'command':'a'}",
        '{"command":1}',
        '{"command":["a"]}',
        '{"priority":"1"}',
        '{"priority":1.0}',
        '{"priority":1e2}',
        '{"priority":true}',
        '{"Priority":1.5}',
        '{"maxAttempts":{}}',
        '{"payload":{"a":01}}',
        '{"payload":NaN}',
        '{"payload":"\n"}',
        '{"x":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"payload":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}",
        "[" * 1_000_000,
    ],
)
def test_an_invalid_body_is_refused_in_the_routes_words(text: str) -> None:
    """Wrong types, too much depth and broken JSON get the same answer."""
    with pytest.raises(ApiError) as refused:
        Schema(task_bodies.TaskBody, refusal="the route's text").decode(text)

    assert (400, "the route's text") == (refused.value.status, refused.value.text)


@pytest.mark.parametrize(
    ("payload", "deep"),
    [
        ("[" * 5 + "]" * 5, False),
        ("[" * 6 + "]" * 6, True),
        ('{"a":' * 6 + "1" + "}" * 6, True),
        ("[" + ",".join(["[]"] * 50) + "]", False),
        ('"' + "[" * 50 + '"', False),
        (r'["\"[[[[[[[[[[[[", "\\", [], "[[["]', False),
        (r'["\\",[[[[[1]]]]]]', True),
    ],
)
def test_depth_is_counted_outside_strings(payload: str, deep: bool) -> None:
    """Five levels are allowed here, however many brackets there are."""
    try:
        reading.json_text(Raw(payload), "payload", depth_max=5, error="")
        refused = False
    except ApiError:
        refused = True

    assert refused == deep


@given(
    st.recursive(
        st.text() | st.integers() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=20,
    )
)
def test_depth_agrees_with_a_walk_of_the_value(value: object) -> None:
    """The count of brackets equals the depth of the parsed value."""
    text = msgspec.json.encode(value).decode()

    assert walked_depth(value) == depth(text)


def walked_depth(value: object) -> int:
    """Count the levels of a value the slow way."""
    if isinstance(value, list):
        return 1 + max(map(walked_depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(walked_depth, value.values()), default=0)
    return 0


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**40])
def test_a_number_beyond_64_bits_is_refused(number: int) -> None:
    """The reference's decoder has no room for it either; the refusal names the field."""
    with pytest.raises(ApiError) as refused:
        reading.whole("delaySeconds", number, error=invalid_body())

    assert "delaySeconds: must fit into 64 bits" == refused.value.extra["detail"]


@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_be_refused(noise: bytes) -> None:
    """Any bytes end in a body or a 400."""
    text = noise.decode(errors="ignore")
    for schema in (each.body for each in ROUTES if each.body is not None):
        with contextlib.suppress(ApiError):
            schema.decode(text)
