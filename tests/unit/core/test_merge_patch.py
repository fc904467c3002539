"""Merge patches of payloads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.core.merge_patch import NoObject, Patch

_scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
_objects = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        _scalars | st.lists(_scalars, max_size=2),
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)


def by_the_rfc(target: object, patch: object) -> object:
    """Return the result of RFC 7396's own pseudo code."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = by_the_rfc(made.get(name), value)
    return made


@given(_objects, _objects)
def test_a_patch_does_what_the_rfc_says(
    target: dict[str, object], patch: dict[str, object]
) -> None:
    """Members are replaced, removed and merged at any depth."""
    made = Patch(json.dumps(patch, indent=1)).applied_to(json.dumps(target, indent=2))

    assert by_the_rfc(target, patch) == json.loads(made)


def test_members_outside_the_patch_keep_every_digit() -> None:
    """The patch's own numbers keep theirs too."""
    payload = '{"id": 12345678901234567890, "price": 1.10, "deep": {"n": 1e400, "gone": 1}}'

    assert (
        '{"id":12345678901234567890,"price":1.10,"deep":{"n":1e400,"new":98765432109876543210}}'
    ) == Patch('{"deep": {"gone": null, "new": 98765432109876543210}}').applied_to(payload)


@pytest.mark.parametrize("text", ["[]", "1", '"a"', "null", "", "{", '{"a":}'])
def test_only_objects_are_patched_and_patches(text: str) -> None:
    """Any other value is refused."""
    with pytest.raises(NoObject):
        Patch("{}").applied_to(text)
    with pytest.raises(NoObject):
        Patch(text)


def test_a_patch_that_nests_too_deep_is_none() -> None:
    """It is read level by level."""
    with pytest.raises(NoObject):
        Patch('{"a":' * 5_000 + "1" + "}" * 5_000)
