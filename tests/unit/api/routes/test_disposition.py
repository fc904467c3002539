"""Disposition: a name in the header stays a file name and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.api.routes.artifacts import disposition
from codeq_cluster.artifacts.names import is_name


@given(st.text(min_size=1).filter(is_name))
def test_a_name_cannot_leave_its_place_in_the_header(name: str) -> None:
    """The name is quoted for old clients and encoded for all others."""
    pattern = r"""attachment; filename="[^"\\%\x00-\x1f\x7f-]*[^"]*"; filename\*=UTF-8''[\w.~%-]+"""

    assert re.fullmatch(pattern, disposition(name), re.ASCII)
    assert 2 == disposition(name).count('"')


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a.txt", "attachment; filename=\"a.txt\"; filename*=UTF-8''a.txt"),
        ("dir/b c.txt", "attachment; filename=\"b c.txt\"; filename*=UTF-8''b%20c.txt"),
        ('"x"', "attachment; filename=\"_x_\"; filename*=UTF-8''%22x%22"),
        ("50%.txt", "attachment; filename=\"50_.txt\"; filename*=UTF-8''50%25.txt"),
        ("é", "attachment; filename=\"_\"; filename*=UTF-8''%C3%A9"),
    ],
)
def test_the_last_part_of_a_name_is_the_files(name: str, header: str) -> None:
    """A client would treat the rest as a directory."""
    assert header == disposition(name)
