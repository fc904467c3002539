"""Messages: the content of authenticated frames, and its strict parsing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from codeq_cluster.errors import (
    CodeqError,
    MethodUnknown,
    NoLeader,
    NotLeader,
    OperationTooLarge,
    OutcomeUnknown,
    Overloaded,
)
from codeq_cluster.wire.refusals import BadFrame, FrameRefusedError

# Longer than any request may wait; keeps a wrong deadline from occupying a handler for ever.
RPC_TIMEOUT_S_MAX: Final = 3600.0

# Overhead of an item beyond its packed part, including a frame's header: numbers, a method.
ITEM_BYTES: Final = 128
_METHOD_CHARACTERS_MAX: Final = 64
# The failures that are a text alone.
_OF_TEXT: Final[Mapping[str, type[CodeqError]]] = {
    "no-leader": NoLeader,
    "outcome-unknown": OutcomeUnknown,
    "too-large": OperationTooLarge,
    "method-unknown": MethodUnknown,
}
_NUMBER_MAX: Final = 2**64 - 1


class RaftMessage(Struct, frozen=True):
    """One message of a Raft group; the group's guard checks its fields.

    Attributes:
        message: Packed.
    """

    group: int
    message: bytes


class RpcRequest(Struct, frozen=True):
    """A call.

    Attributes:
        number: Identifies the call in the answer; never used twice by a process.
        timeout_s: The rest of the caller's time, above 0.
        body: Packed.
    """

    number: int
    method: str
    timeout_s: float
    body: bytes


class RpcAnswer(Struct, frozen=True):
    """The value that the handler returned.

    Attributes:
        body: Packed.
    """

    number: int
    body: bytes


class Failure(Struct, frozen=True):
    """The error that the handler raised."""

    number: int
    error: CodeqError


Message = RaftMessage | RpcRequest | RpcAnswer | Failure

_RAFT: Final = 1
_REQUEST: Final = 2
_ANSWER: Final = 3
_FAILURE: Final = 4

# Returns a value as MessagePack; takes plain values and structs of them.
pack: Final = msgspec.msgpack.Encoder().encode

# Returns the plain values in a MessagePack text; raises msgspec.DecodeError.
unpack: Final = msgspec.msgpack.Decoder().decode

# Returns the body of a frame from its items, in order; a sign of life has none.
bundle: Final = msgspec.msgpack.Encoder().encode

_decode_bundle: Final = msgspec.msgpack.Decoder(list[list[Any]]).decode


def raft_item(group: int, message: bytes) -> list[object]:
    """Return a packed Raft message as a bundle carries it."""
    return [_RAFT, group, message]


def request_item(number: int, method: str, timeout_s: float, body: bytes) -> list[object]:
    """Return a call with a packed body."""
    return [_REQUEST, number, method, timeout_s, body]


def answer_item(number: int, body: bytes) -> list[object]:
    """Return an answer with a packed body."""
    return [_ANSWER, number, body]


def failure_item(number: int, error: CodeqError) -> list[object]:
    """Return a failed call; an error without a code of its own becomes "outcome unknown"."""
    match error:
        case NotLeader():
            return [_FAILURE, number, "not-leader", error.hint, 0]
        case Overloaded():
            what = str(error).removesuffix(" is full")
            return [_FAILURE, number, "overloaded", what, error.retry_after_s]
        case _:
            codes = (code for code, kind in _OF_TEXT.items() if isinstance(error, kind))
            return [_FAILURE, number, next(codes, "outcome-unknown"), str(error), 0]


def parse_bundle(body: bytes) -> list[Message]:
    """Return the messages of a bundle, in order.

    Raises:
        FrameRefusedError: The body is no bundle; the connection must be closed.
    """
    try:
        items = _decode_bundle(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameRefusedError(BadFrame.GARBAGE) from error
    return [_message(item) for item in items]


def _message(value: object) -> Message:
    # Type tests instead of patterns: this runs for every message, and a bool must not pass for an
    # int.
    if type(value) is not list or not value or type(value[0]) is not int:
        raise FrameRefusedError(BadFrame.SCHEMA)
    kind = value[0]
    message: Message | None = None
    if kind == _RAFT and len(value) == 3:
        message = _raft(value[1], value[2])
    elif kind == _REQUEST and len(value) == 5:
        message = _request(value[1], value[2], value[3], value[4])
    elif kind == _ANSWER and len(value) == 3 and _is_number(value[1]) and type(value[2]) is bytes:
        message = RpcAnswer(value[1], value[2])
    elif kind == _FAILURE and len(value) == 5 and _is_number(value[1]):
        message = _failure(value[1], value[2], value[3], value[4])
    if message is None:
        raise FrameRefusedError(BadFrame.SCHEMA)
    return message


def _raft(group: object, message: object) -> RaftMessage | None:
    if type(group) is not int or not 0 <= group <= _NUMBER_MAX or type(message) is not bytes:
        return None
    return RaftMessage(group, message)


def _request(number: object, method: object, timeout_s: object, body: object) -> RpcRequest | None:
    if not _is_number(number) or type(method) is not str or type(body) is not bytes:
        return None
    if type(timeout_s) is not float or not math.isfinite(timeout_s):
        return None
    if not 0 < timeout_s <= RPC_TIMEOUT_S_MAX or len(method) > _METHOD_CHARACTERS_MAX:
        return None
    assert isinstance(number, int)
    return RpcRequest(number, method, timeout_s, body)


def _failure(number: int, code: object, text: object, retry_after_s: object) -> Failure | None:
    error = _error(code, text, retry_after_s)
    return None if error is None else Failure(number, error)


def _error(code: object, text: object, retry_after_s: object) -> CodeqError | None:
    if text is not None and type(text) is not str:
        return None
    if type(retry_after_s) is not int:
        return None
    match code:
        case "not-leader":
            return NotLeader(text)
        case "overloaded":
            enough = retry_after_s >= 1
            return Overloaded(text or "", retry_after_s=retry_after_s) if enough else None
        case str() if code in _OF_TEXT:
            return _OF_TEXT[code](text or "")
        case str():
            # A code of a later release: this node does not know the call's outcome.
            return OutcomeUnknown(f"{code[:_METHOD_CHARACTERS_MAX]}: {text or ''}")
        case _:
            return None


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= _NUMBER_MAX
