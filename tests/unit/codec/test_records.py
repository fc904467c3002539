"""Stored values come back unchanged, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from codeq_cluster.codec import records
from codeq_cluster.codec.records import RecordInvalid
from codeq_cluster.core.items import Pause, Topic
from codeq_cluster.core.task import (
    Artifact,
    Attempt,
    AttemptOutcome,
    Counters,
    More,
    Result,
    State,
    Task,
)
from codeq_cluster.core.view import KeyRow

ATTEMPT = Attempt(worker="ann", started_ms=1, ended_ms=2, outcome=AttemptOutcome.NACKED, delay_ms=7)
TASK = Task(
    id="t",
    tenant="",
    command="Render",
    priority=9,
    max_attempts=5,
    created_ms=1,
    updated_ms=2,
    state=State.DELAYED,
    error="fünf",
    history=(ATTEMPT,),
)
TOPIC = Topic(tenant="", id="render", name="Render", priority_tiers=(1, 2), weight=7)
RESULT = Result(
    task_id="t", status="COMPLETED", body='{"n":1e400}', artifacts=(Artifact("a", "u"),)
)

Decoder = Callable[[bytes], object]
DECODERS = [
    records.decode_task,
    records.decode_result,
    records.decode_key_row,
    records.decode_counters,
    records.decode_item,
]


def test_records_come_back() -> None:
    """Every kind of value survives the store."""
    row = KeyRow("t", "print")
    counters = Counters(1, 2, 3, 4)

    assert TASK == records.decode_task(records.encode(TASK))
    assert RESULT == records.decode_result(records.encode(RESULT))
    assert row == records.decode_key_row(records.encode(row))
    assert counters == records.decode_counters(records.encode(counters))
    assert TOPIC == records.decode_item(records.encode(TOPIC))


def test_an_item_is_told_from_another_by_its_tag() -> None:
    """A task is no item, and no kind reads as another."""
    pause = Pause(tenant="acme", id="q")

    assert pause == records.decode_item(records.encode(pause))
    with pytest.raises(RecordInvalid, match="damaged"):
        records.decode_item(records.encode(TASK))


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("value", [b"", b"\x00", b"\x02" + records.encode(TASK)[1:]])
def test_another_version_is_named_and_refused(decode: Decoder, value: bytes) -> None:
    """The reader never guesses at a record of an unknown version."""
    with pytest.raises(RecordInvalid, match="version"):
        decode(value)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("value", [b"\x01", b"\x01\xc1", b"\x01\x93\xa1a\xa1b\xc4", b"\x01\x80"])
def test_damage_is_refused(decode: Decoder, value: bytes) -> None:
    """Bytes that are no record raise the one error that callers know."""
    with pytest.raises(RecordInvalid, match="damaged"):
        decode(value)


def test_a_record_written_before_a_field_was_added_still_reads() -> None:
    """A new field goes to the end and has a default."""
    newer = msgspec.structs.replace(TASK, more=More(parent_id="p"))
    fields = msgspec.msgpack.decode(records.encode(newer)[1:])
    shorter = b"\x01" + msgspec.msgpack.encode(fields[:-1])

    assert TASK == records.decode_task(shorter)
