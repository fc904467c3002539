"""Kinds of errors: which differences make another kind, and which do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.core.error_kinds import KIND_CHARS_MAX, error_kind


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        (("timed out after 300 ms", "timed out after 4.5 ms"), "timed out after # ms"),
        (
            (
                "no order 5f0c4a2e-11d4-4b5a-9d2e-1a2b3c4d5e6f",
                "no order 00000000-0000-4000-8000-000000000000",
            ),
            "no order #",
        ),
        (("at 0x7f0012ab", "at 0x1"), "at #"),
        (("commit 9fceb02d not found", "commit 1234567890 not found"), "commit # not found"),
        (("10.0.0.1:8080 refused", "10.1.2.33:443 refused"), "# refused"),
        (("two\n  lines", " two lines "), "two lines"),
        (("facade", "facade"), "facade"),
        (("", " \n"), "(no error)"),
    ],
)
def test_errors_that_differ_in_numbers_and_ids_alone_are_of_one_kind(
    errors: tuple[str, str], kind: str
) -> None:
    """Words stay, even those that could be hexadecimal numbers."""
    assert {kind} == {error_kind(error) for error in errors}


@given(st.text(max_size=3 * KIND_CHARS_MAX))
def test_a_kind_is_of_its_own_kind_bounded_and_never_empty(error: str) -> None:
    """A kind can select its errors; an empty one would select all."""
    kind = error_kind(error)

    assert kind == error_kind(kind)
    assert 0 < len(kind) <= KIND_CHARS_MAX
