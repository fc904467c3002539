"""Bodies: what an encoder wrote, in a payload that the broker takes."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.integrations.bodies import DEPTH_MAX, encoded_of, fault_of, payload_of
from codeq_cluster.settings import LimitSettings
from tests.unit.integrations.nested import nested

READABLE = json.dumps([{"a": nested(90)}, "é", "[" * 300]).encode()


def test_json_is_its_own_payload() -> None:
    """People read it on the page."""
    assert READABLE == payload_of(READABLE)


@pytest.mark.parametrize(
    "encoded", [json.dumps(nested(250)).encode(), b"[NaN]", b'"\\udcff"', b"\xff", b"[" * 10_000]
)
def test_what_the_broker_does_not_take_as_json_comes_back_as_it_was(encoded: bytes) -> None:
    """It is carried as a text."""
    payload = payload_of(encoded)

    assert encoded != payload
    assert "" == fault_of(payload)
    assert encoded == encoded_of(payload.decode())


def test_the_depth_is_the_brokers_default() -> None:
    """One level more is said to be too deep, before anything is sent."""
    deepest, deeper = (json.dumps(nested(LimitSettings().payload_depth_max + n)) for n in (0, 1))

    assert "" == fault_of(deepest.encode())
    assert f"nests deeper than {DEPTH_MAX}" == fault_of(deeper.encode())
